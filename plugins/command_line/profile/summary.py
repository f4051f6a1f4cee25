"""Sums of a profile's events: one row for each problem and implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clgraft.plugins.command_line.events import Event
from clgraft.plugins.command_line.terminal import plural


@dataclass(frozen=True)
class ProfileRow:
    """What one problem took.

    Attributes
    ----------
    problem, implementation : str
    calls : float
        Runs in a pass.
    seconds : float
        All of its runs in a pass, the mean of the passes.
    share : float
        Part of the time of all operators, at most 1.
    """

    problem: str
    implementation: str
    calls: float
    seconds: float
    share: float


def rows(events: Sequence[Event], passes: int) -> list[ProfileRow]:
    """Return the rows, the largest first.

    Every pass runs the same, so of `passes` + 1 equal parts of a problem's runs the first one, which warms up, does not
    count.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.kind == "run" and not _is_graph(event):
            found.setdefault((event.problem, event.implementation), []).append(event.seconds)
    sums = {}
    for key, seconds in found.items():
        counted = seconds[len(seconds) // (passes + 1) :]
        sums[key] = (len(counted) / passes, sum(counted) / passes)
    total = sum(seconds for _, seconds in sums.values()) or 1.0
    listed = [ProfileRow(*key, calls, seconds, seconds / total) for key, (calls, seconds) in sums.items()]
    return sorted(listed, key=lambda row: -row.seconds)


def table(found: Sequence[ProfileRow]) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells."""
    cells = [
        [
            f"{100 * row.share:.1f} %",
            f"{1e3 * row.seconds:.3f}",
            f"{row.calls:g}",
            f"{1e3 * row.seconds / max(row.calls, 1e-9):.3f}",
            row.implementation,
            row.problem,
        ]
        for row in found
    ]
    return ["share", "ms", "calls", "ms/call", "implementation", "problem"], cells


def _is_graph(event: Event) -> bool:
    """Return whether an event is that of a whole region, whose problems have rows of their own."""
    return event.implementation == "graph"


def regions(events: Sequence[Event], passes: int) -> tuple[float, float]:
    """Return how often regions run in a pass, and for how many seconds; the passes are those of `rows`.

    What runs less often than there are passes is no part of them, such as what folds constants once.
    """
    found: dict[str, list[float]] = {}
    for event in events:
        if event.kind == "run" and _is_graph(event):
            found.setdefault(event.problem, []).append(event.seconds)
    counted = [
        one for seconds in found.values() if len(seconds) > passes for one in seconds[len(seconds) // (passes + 1) :]
    ]
    return len(counted) / passes, sum(counted) / passes


def sums(found: Sequence[ProfileRow], events: Sequence[Event], passes: int) -> list[str]:
    """Return the closing lines: the sum of each operator and direction, of all, and what planning took."""
    kinds: dict[str, float] = {}
    for row in found:
        kinds[_kind(row.problem)] = kinds.get(_kind(row.problem), 0.0) + row.seconds
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    plans = _plans(events)
    lines = [", ".join(f"{kind} {1e3 * seconds:.3f} ms" for kind, seconds in ordered)] if len(ordered) > 1 else []
    calls = sum(row.calls for row in found)
    lines.append(f"one pass: {1e3 * sum(kinds.values()):.3f} ms in {calls:g} calls")
    runs, seconds = regions(events, passes)
    if runs:
        lines.append(f"regions: {1e3 * seconds:.3f} ms in {runs:g} calls; the rows are of their problems, each alone")
    lines.append(f"planning, once: {plural(len(plans), 'plan')} in {sum(plans):.2f} s")
    return lines


def _plans(events: Sequence[Event]) -> list[float]:
    """Return the seconds of each plan of a problem; that of a whole region contains those of its problems."""
    return [event.seconds for event in events if event.kind == "plan" and not _is_graph(event)]


def as_record(found: Sequence[ProfileRow], events: Sequence[Event], passes: int) -> dict[str, Any]:
    """Return everything for JSON."""
    calls, seconds = regions(events, passes)
    plans = _plans(events)
    return {
        "rows": [asdict(row) for row in found],
        "seconds": sum(row.seconds for row in found),
        "region_calls": calls,
        "region_seconds": seconds,
        "plans": len(plans),
        "planning_seconds": sum(plans),
    }


def _kind(problem: str) -> str:
    """Return the operator with its direction: ``conv forward``."""
    words = problem.split()
    return (
        " ".join(words[:2]) if len(words) > 1 and words[1].isidentifier() and not words[1][-1].isdigit() else words[0]
    )
