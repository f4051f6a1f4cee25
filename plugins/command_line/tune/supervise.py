"""Run the child process that searches, watch it, and start it again after a candidate that hung or crashed."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import ClgraftError
from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.tuning.database import Candidate, Database
from clgraft.plugins import registry
from clgraft.plugins.command_line.child import calling
from clgraft.plugins.plugin import Task

Event = dict[str, Any]


class TuneError(ClgraftError, RuntimeError):
    """Raised where a search could not be carried out."""


class Lost(Exception):
    """Raised where the process ended, or was ended, too early; `outcome` is ``crashed`` or ``timeout``."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Effort:
    """How much may be spent, in seconds: on a problem's candidates, on the finals, on one candidate, on everything."""

    seconds: float = 60.0
    final_seconds: float = 3.0
    rounds: int = 25
    candidate_seconds: float = 120.0
    budget: float | None = None


def events(job: dict[str, Any], device: str | None, most_seconds: float | None) -> Iterator[Event]:
    """Run a job in a child process and yield its events.

    Parameters
    ----------
    most_seconds : float, optional
        The longest time between two events.

    Raises
    ------
    Lost
        If the process ends too early or stops responding.
    TuneError
        If the process refuses the job.
    """
    environment = {**registry.environment(device), settings.TUNE.name: "off"}
    command = calling("clgraft.plugins.command_line.tune.worker")
    with tempfile.TemporaryFile(mode="w+", errors="replace") as words:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True, env=environment
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError), child.stdin:  # one that has ended already says why below
                child.stdin.write(json.dumps(job))
            yield from _until_done(lines, most_seconds)
        except queue.Empty:
            raise Lost("timeout", f"no end after {most_seconds:.0f} s") from None
        except EOFError:
            status = child.wait()
            words.seek(0)
            last = [line.strip() for line in words if line.strip()][-4:]
            raise Lost("crashed", " | ".join([f"the process ended with status {status}", *last])) from None
        finally:
            child.kill()
            child.wait()
            reader.join()
            assert child.stdout is not None
            child.stdout.close()


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _until_done(lines: queue.Queue[str | None], most_seconds: float | None) -> Iterator[Event]:
    while True:
        line = lines.get(timeout=most_seconds)
        if line is None:
            raise EOFError
        event = json.loads(line)
        if event["event"] == "done":
            return
        if event["event"] == "refused":
            raise TuneError(event["reason"])
        yield event


def collect(task: Task, device: str | None) -> list[str]:
    """Return the problems of a model, which runs once in a child process.

    Parameters
    ----------
    task : Task
        What `Plugin.problems` returned.
    """
    job = {"task": "collect", "module": task.module, "arguments": task.arguments}
    try:
        return [text for event in events(job, device, None) for text in event["problems"]]
    except Lost as reason:
        raise TuneError(f"[tune] {reason}") from None


def search(
    problems: Sequence[str],
    effort: Effort,
    device: str | None,
    again: bool = False,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Event]:
    """Search problems; a candidate that ends the process becomes a row, and the search continues.

    The events are those of `worker.search`.

    Parameters
    ----------
    again : bool
        Forget the known results first.
    only : mapping of str to sequence of str, optional
        The choices of each problem that are tried besides the heuristic; by default everything that can be.
    """
    pending = list(problems)
    end = None if effort.budget is None else time.monotonic() + effort.budget
    key = ""
    while pending:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return
        job = {
            "task": "search",
            "problems": pending,
            "seconds": effort.seconds,
            "final_seconds": effort.final_seconds,
            "rounds": effort.rounds,
            "budget": left,
            "again": again,
            "only": only,
        }
        again = False
        trying = ""
        try:
            for event in events(job, device, effort.candidate_seconds):
                trying = event["choice"] if event["event"] == "trying" else ""
                key = event["key"] if event["event"] == "device" else key
                yield event
                if event["event"] in ("winner", "failed"):
                    pending.remove(event["problem"])
            return
        except Lost as lost:
            if not key:
                raise TuneError(f"[tune] {lost}") from None
            yield from _bury(pending, trying, key, lost)


def _bury(pending: list[str], trying: str, key: str, lost: Lost) -> Iterator[Event]:
    """Store what the process was doing as a row; without the heuristic's own time a problem cannot be searched."""
    if trying and trying != str(HEURISTIC):
        kept = Database(key).add(pending[0], Candidate(Choice.parse(trying), lost.outcome, str(lost)))
        yield {
            "event": "candidate",
            "choice": trying,
            "outcome": lost.outcome,
            "reason": str(lost),
            "timing": None,
            "error": None,
            "kept": kept,
        }
        if kept:
            return
    doing = f"trying {trying}" if trying else "timing the best"
    yield {"event": "failed", "problem": pending.pop(0), "reason": f"{lost.outcome} while {doing}: {lost}"}
