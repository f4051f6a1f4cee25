"""How many threads a peer computes with: its default and all processors are tried, and the faster of both is taken.

Frameworks read their number of threads when they are imported, so each trial is a process of its own. What the user has
set in the environment is respected.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clgraft.plugins.command_line.bench.cases import case
from clgraft.plugins.plugin import Peer

DEFAULT, ALL = "default", "all processors"
PRODUCT = "conv n8 ic256 ih14 iw14 oc512 kh1 kw1"
TRIALS = {"product": PRODUCT, "convolution": "conv n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1"}
SECONDS = 0.5  # of each call of a trial
ROUNDS = 3  # of trials in turns, so that another program does not decide
DECIDED = 0.8  # all processors take this share of the default's time, or less: one round is enough
WORKING = 0.25  # the share of the busiest thread's time from which a thread takes part
TASKS = "/proc/self/task"


class Trial(NamedTuple):
    """What a peer took with one setting."""

    threads: int
    seconds: float


@dataclass(frozen=True)
class Threads:
    """With how many threads a peer was measured, and why.

    Attributes
    ----------
    count : int
        Read back in the process that measured.
    chosen : str
        `DEFAULT`, `ALL` or what the environment says.
    tried : dict of str to Trial
        What was tried, by name.
    """

    count: int
    chosen: str
    tried: dict[str, Trial] = field(default_factory=dict)

    def __str__(self) -> str:
        others = [f"{name} {trial.threads}" for name, trial in self.tried.items() if name != self.chosen]
        count = f"{self.count} thread{'s' * (self.count != 1)}"
        return f"{count} ({'; slower: '.join([self.chosen, *others])})"

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Threads:
        """Return what JSON kept of a number of threads."""
        return cls(content["count"], content["chosen"], {name: Trial(*both) for name, both in content["tried"].items()})


class Choice(NamedTuple):
    """The faster setting: what a process of the peer needs in its environment, its name, and what was tried."""

    environment: dict[str, str]
    chosen: str
    tried: dict[str, Trial]

    def __str__(self) -> str:
        return str(self.threads(self.tried[self.chosen].threads)) if self.tried else self.chosen

    def threads(self, count: int) -> Threads:
        """Return the choice with the number that was read back."""
        return Threads(count, self.chosen, self.tried)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(peer: Peer, environment: Mapping[str, str], trial: Callable[[dict[str, str]], Trial]) -> Choice:
    """Return the faster of a peer's default and all processors, or what the user has set.

    Parameters
    ----------
    peer : Peer
    environment : mapping of str to str
        In which the peer will run.
    trial : callable
        Receives environment variables that are set in addition, and runs `tried` in a process with them.
    """
    given = [f"{name}={environment[name]}" for name in peer.thread_variables if environment.get(name)]
    if given:
        return Choice({}, " ".join(given), {})
    count = processors()
    if not peer.thread_variables or count == 1:
        return Choice({}, DEFAULT, {})
    every = dict.fromkeys(peer.thread_variables, str(count))
    found = {DEFAULT: trial({})}
    if found[DEFAULT].threads != count:
        found[ALL] = trial(every)
        for _ in range(ROUNDS - 1):
            if found[ALL].seconds <= DECIDED * found[DEFAULT].seconds:
                break
            found = {DEFAULT: _quicker(found[DEFAULT], trial({})), ALL: _quicker(found[ALL], trial(every))}
    chosen = min(found, key=lambda name: found[name].seconds)
    return Choice(every if chosen == ALL else {}, chosen, found)


def _quicker(one: Trial, other: Trial) -> Trial:
    return min(one, other, key=lambda trial: trial.seconds)


def tried(peer: Peer) -> Trial:
    """Return the threads of a peer in this process and the seconds that a product and a convolution take."""
    calls = {name: _calls(peer, text) for name, text in TRIALS.items()}
    seconds = sum(min(map(_shortest, sides)) for sides in calls.values())
    return Trial(read_back(peer, calls["product"][0]), seconds)


def read_back(peer: Peer, product: Callable[[], object] | None = None) -> int:
    """Return the number of threads of a peer in this process: what it says itself, else how many a product keeps busy.

    Parameters
    ----------
    peer : Peer
        Its module of operators may have a function ``threads()``.
    product : callable, optional
        A call of the peer that uses all of its threads.
    """
    own = getattr(importlib.import_module(peer.operators), "threads", None)
    return int(own()) if own else busy(product or _calls(peer, PRODUCT)[0])


def busy(call: Callable[[], object], seconds: float = SECONDS) -> int:
    """Return how many threads of this process take part in a call: those that the system gives time to meanwhile."""
    call()
    before = _thread_seconds()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
    used = [now - before.get(thread, 0.0) for thread, now in _thread_seconds().items()]
    return sum(1 for one in used if one > WORKING * max(used)) or 1


def _thread_seconds() -> dict[int, float]:
    """Return the processor time of each thread of this process, by Linux's number of it."""
    found = {}
    for thread in map(int, os.listdir(TASKS)):
        try:
            found[thread] = time.clock_gettime(~thread << 3 | 6)  # Linux's clock of a thread's processor time
        except OSError:  # it has ended
            continue
    return found


def _calls(peer: Peer, text: str) -> list[Callable[[], object]]:
    """Return a peer's calls of a problem, one for each of its layouts."""
    sides = importlib.import_module(peer.operators).sides(case("", text, text))
    return [side.forward for name, side in sides.items() if name != "clgraft"]


def _shortest(call: Callable[[], object]) -> float:
    """Return the shortest time of a call: that which other programs disturbed least."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
