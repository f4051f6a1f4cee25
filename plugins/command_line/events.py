"""The lines of ``CLGRAFT_VERBOSE``: what was planned and what ran, how long it took, and when."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# the problem's text may hold commas; the numbers at the end always have three decimals
_LINE = re.compile(r"clgraft,(plan|run),([^,]*),(.*?),(\d+\.\d{3})(?:,(\d+\.\d{3}),(\d+))?\s*")


@dataclass(frozen=True)
class Event:
    """One plan or one run.

    Attributes
    ----------
    kind : str
        ``plan`` or ``run``.
    implementation, problem : str
    seconds : float
        How long it took.
    start : float or None
        When it began, in seconds of the machine's monotonic clock; None if the line does not say.
    thread : int
        The operating system's number of the thread; 0 if the line does not say.
    """

    kind: str
    implementation: str
    problem: str
    seconds: float
    start: float | None = None
    thread: int = 0


def parse(line: str) -> Event | None:
    """Return the event of a line, or None if the line is something else."""
    found = _LINE.fullmatch(line)
    if not found:
        return None
    kind, implementation, problem, took, start, thread = found.groups()
    return Event(
        kind,
        implementation,
        problem,
        float(took) / 1e3,
        None if start is None else float(start) / 1e3,
        int(thread or 0),
    )


def read(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events among lines of text."""
    for line in lines:
        event = parse(line)
        if event is not None:
            yield event


def chrome_trace(events: Iterable[Event], process: str) -> str:
    """Return events as JSON that chrome://tracing and Perfetto show.

    Parameters
    ----------
    events : iterable of Event
        Those without a start are left out.
    process : str
        The title of the process, such as the device's name.
    """
    timed = [event for event in events if event.start is not None]
    origin = min((event.start for event in timed if event.start is not None), default=0.0)
    rows: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process}}]
    for event in timed:
        assert event.start is not None
        rows.append(
            {
                "ph": "X",
                "name": event.problem if event.kind == "run" else f"plan {event.problem}",
                "cat": event.kind,
                "ts": round(1e6 * (event.start - origin), 3),
                "dur": round(1e6 * event.seconds, 3),
                "pid": 1,
                "tid": event.thread,
                "args": {"implementation": event.implementation},
            }
        )
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, indent=1)
