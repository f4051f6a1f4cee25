"""Measures the cases of problem sets against the peers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clgraft.plugins.command_line import lone_run
from clgraft.plugins.command_line.bench import core_operators, floors, peers
from clgraft.plugins.command_line.bench.cases import DIRECTIONS, Case
from clgraft.plugins.command_line.bench.named import LoneCase
from clgraft.plugins.command_line.bench.results import NO_PEER, Measurement
from clgraft.plugins.command_line.bench.timing import compare

AGREEMENT = 1e-4  # relative, by the norm: more than rounding, Winograd's too, can make of float32


@dataclass(frozen=True)
class Missing:
    """A row that is missing: of which case, why, and whether the peer has the operator at all."""

    case: str
    reason: str
    served: bool

    def __str__(self) -> str:
        return f"{self.case}: {self.reason}"


def measure(case: Case, peer: str, seconds: float = 1.0) -> Iterator[Measurement | Missing]:
    """Measure a case against a peer: a row for each direction, each `seconds` long."""
    try:
        yield from _rows(case, peer, seconds)
    except peers.NotServed as reason:
        yield Missing(case.name, str(reason), False)
    gc.collect()


def alone(case: Case, seconds: float = 1.0) -> Iterator[Measurement]:
    """Measure a case that no peer has."""
    if isinstance(case, LoneCase):
        yield _alone(case, getattr(case.work, "direction", "forward"), lone_run.bind(case.work), seconds)
        return
    side = core_operators.side(case, peers.operands(case.work)[1])
    yield from (_alone(case, d, call, seconds) for d in DIRECTIONS if (call := getattr(side, d)))


def _alone(case: Case, direction: str, call: Callable[[], object], seconds: float) -> Measurement:
    """Return the row of an operator that no peer has."""
    times = compare({"clgraft": call}, seconds)["clgraft"]
    flops, nbytes = case.flops(direction), case.nbytes(direction)
    return Measurement(
        *(case.set, case.name, case.text, case.group, direction, NO_PEER, 0.0, times.median),
        ours_spread=times.spread,
        flops=flops,
        nbytes=nbytes,
        floor=floors.of(call),
    )


def _rows(case: Case, peer: str, seconds: float) -> Iterator[Measurement | Missing]:
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
        reason = f"results differ from those of {peer} by {difference:.1e}, expected at most {AGREEMENT:.0e}"
        yield Missing(case.name, reason, True)
        return
    for direction in DIRECTIONS:
        calls = {name: getattr(side, direction) for name, side in sides.items()}
        if not all(calls.values()):
            continue
        times = compare(calls, seconds)
        layout = min(layouts, key=lambda name: times[name].median)
        yield Measurement(
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
