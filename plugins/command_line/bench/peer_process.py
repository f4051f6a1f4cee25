"""A peer in a process of its own, so that peers that share a runtime cannot disturb each other, and what it sends.

The parent writes a job as JSON to the child's standard input and reads a message per line from its standard output.
What frameworks print goes to stderr.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clgraft.core import settings
from clgraft.core.planning.floor import Peaks
from clgraft.plugins import registry
from clgraft.plugins.command_line import child
from clgraft.plugins.command_line.bench import allocation, operators, peaks, peer_threads, peers
from clgraft.plugins.command_line.bench.cases import Case, case
from clgraft.plugins.command_line.bench.named import OWN, LoneCase
from clgraft.plugins.command_line.bench.peer_threads import Choice, Threads, Trial
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.plugin import REPORTED, PluginError

CHOSEN = settings.CHOSEN_THREADS.name  # a restarted program finds the choice in this variable
COMMAND = child.calling("clgraft.plugins.command_line.bench.peer_process", "serve")


def messages(job: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Run a job in a child process and yield what it sends.

    Parameters
    ----------
    job : mapping
        Keyword arguments of `work`.
    environment : mapping of str to str
        The child's whole environment.

    Raises
    ------
    PluginError
        If the job cannot be done, or the process ends before it is.
    """
    try:
        yield from child.messages(COMMAND, environment, PluginError, json.dumps(job))
    except child.Ended as end:
        peer = job["peer"] or "clgraft"
        raise PluginError(f"[bench] got exit status {end.status} of the process of {peer}, expected 0") from None


def trial(peer: str, environment: Mapping[str, str]) -> Trial:
    """Return what a peer takes in a process with an environment (see `peer_threads.tried`)."""
    (found, _) = messages({"peer": peer, "trial": True}, environment)
    return Trial(*found["trial"])


def best(peer: str, environment: Mapping[str, str]) -> Choice:
    """Return the faster number of threads of a peer, each tried in a process with an environment."""
    return peer_threads.choose(peers.known()[peer], environment, lambda more: trial(peer, {**environment, **more}))


def restarted(peer: str) -> Threads:
    """Start the running program again with a peer's best number of threads, and return them there.

    For programs that measure one peer; what came before this call happens twice.
    """
    if CHOSEN not in os.environ:
        environment = registry.environment()
        choice = best(peer, environment)
        sys.stdout.flush()
        note = {CHOSEN: json.dumps([choice.chosen, choice.tried])}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**environment, **choice.environment, **note})
    chosen, tried = json.loads(os.environ.pop(CHOSEN))
    return Threads.read({"count": _read_back(peer), "chosen": chosen, "tried": tried})


def job(
    peer: str,
    cases: Sequence[Case],
    nets: Sequence[tuple[str, int]],
    seconds: float,
    ceilings: Peaks | None = None,
    directions: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a job that measures cases and whole nets, which are pairs of a name and a batch size.

    Without a peer the cases are measured alone. Floors follow from the peaks of the whole run, if they are given. Nets
    are measured in all directions, if none are given.
    """
    written = [(one.set, one.name, one.text, isinstance(one, LoneCase)) for one in cases]
    given = (ceilings.flops, ceilings.bandwidth) if ceilings else ()
    asked = {"directions": list(directions)} if directions else {}
    return {"peer": peer, "cases": written, "nets": list(nets), "seconds": seconds, "ceilings": given, **asked}


def work(
    peer: str,
    trial: bool = False,
    cases: Sequence[tuple[str, str, str, bool]] = (),
    nets: Sequence[tuple[str, int]] = (),
    seconds: float = 1.0,
    ceilings: Sequence[float] = (),
    directions: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Do a job in the child process and yield messages.

    ``trial``: threads and seconds; ``peer``: version, mode and the threads that were read back; ``doing``: what is
    measured next; ``row``: a row; ``missing``: why there is none; ``unserved``: the index of a case that the peer does
    not have; ``done``.
    """
    from clgraft import core

    core.context()  # before the peer: a CPU driver cannot be loaded after OpenVINO, whose TBB is another version
    if ceilings:
        peaks.take(Peaks(*ceilings))
    if trial:
        yield {"trial": peer_threads.tried(peers.known()[peer])}
    elif peer:
        mode = peers.mode(peer, bool(cases), bool(nets))
        yield {"peer": {"threads": _read_back(peer), "version": peers.describe(peer), "mode": mode}}
    if peer and cases:
        allocation.keep_freed_memory()
    for index, (set_name, name, text, lone) in enumerate(cases):
        one = LoneCase(OWN, name, text, case("", name, text).work) if lone else case(set_name, name, text)
        yield {"doing": f"{name} against {peer}" if peer else name}
        for row in operators.measure(one, peer, seconds) if peer else operators.alone(one, seconds):
            yield {**_message(row), **({} if getattr(row, "served", True) else {"unserved": index})}
    for net, batch in nets:
        yield {"doing": f"{net} batch {batch} against {peer}"}
        module = importlib.import_module(peers.known()[peer].nets_module)
        for row in module.measure([net], [batch], 20 * seconds, **({"directions": directions} if directions else {})):
            yield _message(row)
    yield {"done": True}


def _message(row: Measurement | operators.Missing) -> dict[str, Any]:
    """Return the message of a row, or of why there is none."""
    return {"missing": str(row)} if isinstance(row, operators.Missing) else {"row": dataclasses.asdict(row)}


def _read_back(peer: str) -> int:
    from clgraft import core

    core.context()
    return peer_threads.read_back(peers.known()[peer])


def serve() -> None:
    """Do the job that standard input has, in the child process."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)
        try:
            for message in work(**json.loads(sys.stdin.read())):
                channel.write(json.dumps(message) + "\n")
                channel.flush()
        except REPORTED as error:
            channel.write(json.dumps({"reason": str(error)}) + "\n")
