"""OpenVINO's CPU operators and whole nets, as `bench_operators` and `bench_nets` measure ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from clgraft.plugins.command_line.bench.cases import Case
from clgraft.plugins.command_line.bench.peers import Side
from clgraft.plugins.command_line.bench.results import Measurement
from clgraft.plugins.onnx import bench_nets, bench_operators

MODE = bench_operators.MODE


def sides(case: Case) -> dict[str, Side]:
    """Return both sides of a case, forward only."""
    return bench_operators.sides(case, "openvino")


def measure(
    names: Sequence[str],
    batches: Sequence[int],
    seconds: float = 20.0,
    least: int = 5,
    directions: Collection[str] = ("inference",),
) -> Iterator[Measurement]:
    """Measure the inference of nets, as `bench_nets.measure` does."""
    return bench_nets.measure(names, batches, seconds, least, "openvino", directions)
