"""Measures the cases of problem sets against the peers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence

from clgraft.plugins.command_line.bench import peers
from clgraft.plugins.command_line.bench.cases import DIRECTIONS, Case
from clgraft.plugins.command_line.bench.results import Row
from clgraft.plugins.command_line.bench.timing import compare

AGREEMENT = 1e-4  # relative, by the norm: more than rounding, Winograd's too, can make of float32


def measure(cases: Sequence[Case], names: Sequence[str], seconds: float = 1.0) -> Iterator[Row | str]:
    """Measure, a row at a time.

    Parameters
    ----------
    cases : sequence of Case
    names : sequence of str
        The peers.
    seconds : float
        For each row.

    Yields
    ------
    Row or str
        A string says which row there is not, and why: a peer without the operator, or results that differ.
    """
    for case in cases:
        for peer in names:
            try:
                yield from _rows(case, peer, seconds)
            except peers.NotServed as reason:
                yield f"{case.name}: {reason}"
            gc.collect()


def _rows(case: Case, peer: str, seconds: float) -> Iterator[Row | str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers
        sides = peers.sides(peer, case)
    native, ours = sides["native"], sides["clgraft"]
    for side in (native, ours):
        side.forward()
        if native.backward and ours.backward and side.backward:
            side.backward()
    difference = peers.disagreement(native, ours)
    if not difference <= AGREEMENT:
        yield f"{case.name}: results differ from those of {peer} by {difference:.1e}, expected at most {AGREEMENT:.0e}"
        return
    for direction in DIRECTIONS:
        calls = {name: getattr(side, direction) for name, side in sides.items()}
        if not all(calls.values()):
            continue
        times = compare(calls, seconds)
        yield Row(
            case.set,
            case.name,
            case.text,
            case.group,
            direction,
            peer,
            times["native"].median,
            times["clgraft"].median,
            times["native"].spread,
            times["clgraft"].spread,
            case.flops(direction),
            case.nbytes(direction),
            difference,
        )
