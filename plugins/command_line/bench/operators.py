"""Measures the cases of problem sets against the peers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence

from clgraft.plugins.command_line import lone_run
from clgraft.plugins.command_line.bench import core_operators, floors, peers
from clgraft.plugins.command_line.bench.cases import DIRECTIONS, Case
from clgraft.plugins.command_line.bench.named import LoneCase
from clgraft.plugins.command_line.bench.results import NO_PEER, Row
from clgraft.plugins.command_line.bench.timing import compare

AGREEMENT = 1e-4  # relative, by the norm: more than rounding, Winograd's too, can make of float32


def measure(
    cases: Sequence[Case],
    names: Sequence[str],
    seconds: float = 1.0,
    doing: Callable[[str, int], None] = lambda what, done: None,
) -> Iterator[Row | str]:
    """Measure, a row at a time.

    Parameters
    ----------
    cases : sequence of Case
    names : sequence of str
        The peers.
    seconds : float
        For each row.
    doing : callable
        Receives what is measured next, and how many pairs of a case and a peer are done (see `pairs`).

    Yields
    ------
    Row or str
        A string says which row is missing, and why: a peer without the operator, or results that differ. What none of
        the peers has is measured alone.
    """
    done = 0
    for case in cases:
        if isinstance(case, LoneCase):
            doing(case.name, done)
            direction = getattr(case.work, "direction", "forward")
            yield _alone(case, direction, lone_run.bind(case.work), seconds)
            done += 1
            continue
        served = False
        for peer in names:
            doing(f"{case.name} against {peer}", done)
            done += 1
            try:
                yield from _rows(case, peer, seconds)
                served = True
            except peers.NotServed as reason:
                yield f"{case.name}: {reason}"
            gc.collect()
        if not served:
            side = core_operators.side(case, peers.operands(case.work)[1])
            yield from (_alone(case, d, call, seconds) for d in DIRECTIONS if (call := getattr(side, d)))


def pairs(cases: Sequence[Case], names: Sequence[str]) -> int:
    """Return how many pairs of a case and a peer `measure` goes through."""
    return sum(1 if isinstance(case, LoneCase) else len(names) for case in cases)


def _alone(case: Case, direction: str, call: Callable[[], object], seconds: float) -> Row:
    """Return the row of an operator that no peer has."""
    times = compare({"clgraft": call}, seconds)["clgraft"]
    flops, nbytes = case.flops(direction), case.nbytes(direction)
    return Row(
        *(case.set, case.name, case.text, case.group, direction, NO_PEER, 0.0, times.median),
        ours_spread=times.spread,
        flops=flops,
        nbytes=nbytes,
        floor=floors.of(call),
    )


def _rows(case: Case, peer: str, seconds: float) -> Iterator[Row | str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers warn
        sides = peers.sides(peer, case)
    ours = sides["clgraft"]
    layouts = {name: side for name, side in sides.items() if name != "clgraft"}
    for side in sides.values():
        side.forward()
        if ours.backward and side.backward and all(native.backward for native in layouts.values()):
            side.backward()
    difference = max(peers.disagreement(native, ours) for native in layouts.values())
    if not difference <= AGREEMENT:
        yield f"{case.name}: results differ from those of {peer} by {difference:.1e}, expected at most {AGREEMENT:.0e}"
        return
    for direction in DIRECTIONS:
        calls = {name: getattr(side, direction) for name, side in sides.items()}
        if not all(calls.values()):
            continue
        times = compare(calls, seconds)
        layout = min(layouts, key=lambda name: times[name].median)
        yield Row(
            case.set,
            case.name,
            case.text,
            case.group,
            direction,
            peer,
            times[layout].median,
            times["clgraft"].median,
            times[layout].spread,
            times["clgraft"].spread,
            case.flops(direction),
            case.nbytes(direction),
            difference,
            layout if len(layouts) > 1 else "",
            floor=floors.of(calls["clgraft"]),
        )
