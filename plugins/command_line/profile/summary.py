"""Sums of a profile's events: one row for each problem and implementation, and the time of a pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clgraft.core.problem.layout import LAST
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
        All of its runs in a pass, the median of the passes.
    share : float
        Part of the time of all operators, at most 1.
    """

    problem: str
    implementation: str
    calls: float
    seconds: float
    share: float


@dataclass(frozen=True)
class Pass:
    """How many calls some runs are in a pass, and how long they take: seconds, the median of the passes."""

    calls: float
    seconds: float


def rows(events: Sequence[Event], passes: int) -> list[ProfileRow]:
    """Return the rows, the largest first; problems inside of regions have run alone for them.

    Every pass runs the same, so of `passes` + 1 equal parts of a problem's runs the first one, which warms up, does not
    count. What runs less often than there are passes is no part of them, such as what folds constants once.
    """
    found = {
        key: _pass([seconds], passes) for key, seconds in _runs(events, passes, lambda event: not _is_graph(event))
    }
    total = sum(one.seconds for one in found.values()) or 1.0
    listed = [ProfileRow(*key, one.calls, one.seconds, one.seconds / total) for key, one in found.items()]
    return sorted(listed, key=lambda row: -row.seconds)


def _runs(
    events: Sequence[Event], passes: int, wanted: Callable[[Event], bool]
) -> Iterable[tuple[tuple[str, str], list[float]]]:
    """Return the seconds of all runs of each problem and implementation that runs in every pass."""
    found: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.kind == "run" and wanted(event):
            found.setdefault((event.problem, event.implementation), []).append(event.seconds)
    return ((key, seconds) for key, seconds in found.items() if len(seconds) > passes)


def _pass(several: Iterable[Sequence[float]], passes: int) -> Pass:
    """Return what a pass of several problems takes, from the seconds of all runs of each."""
    sums, calls = [0.0] * passes, 0
    for seconds in several:
        ends = [len(seconds) * number // (passes + 1) for number in range(1, passes + 2)]
        calls += ends[-1] - ends[0]
        sums = [one + sum(seconds[begin:end]) for one, begin, end in zip(sums, ends, ends[1:])]
    return Pass(calls / passes, statistics.median(sums))


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


def regions(events: Sequence[Event], passes: int) -> Pass:
    """Return what the regions of a pass take."""
    return _pass((seconds for _, seconds in _runs(events, passes, _is_graph)), passes)


def model(events: Sequence[Event], passes: int, alone: float) -> Pass:
    """Return what a pass of a model with regions takes: regions, and operators outside of them.

    Parameters
    ----------
    events : sequence of Event
    passes : int
    alone : float
        When the problems of regions began to run alone, in seconds of the machine's monotonic clock.
    """
    own = _runs(events, passes, lambda event: event.start is None or event.start < alone)
    return _pass((seconds for _, seconds in own), passes)


def sums(found: Sequence[ProfileRow], events: Sequence[Event], passes: int, alone: float) -> list[str]:
    """Return the closing lines: the sum of each operator and direction, of all, and what planning took.

    `alone` is that of `model`.
    """
    kinds: dict[str, float] = {}
    for row in found:
        kinds[_kind(row.problem)] = kinds.get(_kind(row.problem), 0.0) + row.seconds
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    plans = _plans(events)
    lines = [", ".join(f"{kind} {1e3 * seconds:.3f} ms" for kind, seconds in ordered)] if len(ordered) > 1 else []
    last = [row for row in found if f"layout={LAST}" in row.problem.split()]
    if last:
        calls = sum(row.calls for row in last)
        lines.append(f"windows in channels last: {1e3 * sum(row.seconds for row in last):.3f} ms in {calls:g} calls")
    listed = f"{1e3 * sum(kinds.values()):.3f} ms in {sum(row.calls for row in found):g} calls"
    inside = regions(events, passes)
    if inside.calls:
        whole = model(events, passes, alone)
        lines.append(f"the rows: {listed}, where problems of regions run one by one and alone")
        lines.append(
            f"one pass: {1e3 * whole.seconds:.3f} ms in {whole.calls:g} calls, of it regions "
            f"{1e3 * inside.seconds:.3f} ms in {inside.calls:g}"
        )
    else:
        lines.append(f"one pass: {listed}")
    lines.append(f"times: medians of {plural(passes, 'pass', 'passes')} after one that warms up")
    lines.append(f"planning, once: {plural(len(plans), 'plan')} in {sum(plans):.2f} s")
    return lines


def _plans(events: Sequence[Event]) -> list[float]:
    """Return the seconds of each plan of a problem; that of a whole region contains those of its problems."""
    return [event.seconds for event in events if event.kind == "plan" and not _is_graph(event)]


def as_record(found: Sequence[ProfileRow], events: Sequence[Event], passes: int, alone: float) -> dict[str, Any]:
    """Return everything for JSON; `seconds` is the sum of the rows, `pass_seconds` what a pass of the model takes."""
    inside = regions(events, passes)
    listed = sum(row.seconds for row in found)
    plans = _plans(events)
    return {
        "rows": [asdict(row) for row in found],
        "seconds": listed,
        "pass_seconds": model(events, passes, alone).seconds if inside.calls else listed,
        "region_calls": inside.calls,
        "region_seconds": inside.seconds,
        "plans": len(plans),
        "planning_seconds": sum(plans),
    }


def _kind(problem: str) -> str:
    """Return the operator with its direction: ``conv forward``."""
    words = problem.split()
    return (
        " ".join(words[:2]) if len(words) > 1 and words[1].isidentifier() and not words[1][-1].isdigit() else words[0]
    )
