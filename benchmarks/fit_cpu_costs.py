"""Fit the cost constants of the planners for CPU devices: `python benchmarks/fit_cpu_costs.py [product filter ...]`.

Convolutions of problem sets, or of files such as benchmarks/strided.txt, run with settings that a search would try. The
constants are those with which the planners' estimates follow the measured times best: the least squares of the
logarithms, up to one common factor for a planner, since only ratios of estimates count. The rows that are printed
belong into core/operators/conv/cpu_costs.txt. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from progress import announced

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu import backward_filter, blocking, gemm
from clgraft.core.operators.conv.grid import forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd import tiles, winograd
from clgraft.core.planning.choice import Choice
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.problem import ceil_div
from clgraft.core.tuning import problem_sets
from clgraft.core.tuning.timing import Buffers, Runner

FIXED = ("near_size", "tile_rows")  # sizes of caches and tiles, which are not costs
MULTIPLIERS = (2.0, 1.3, 1.08, 1 / 1.08, 1 / 1.3, 0.5)
Constants = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Sample:
    """A choice for a problem: what a planner estimates for it with the constants of now, and its time in seconds."""

    estimate: Callable[[], float]
    seconds: float


def measure(context: Any, problem: ConvProblem, name: str, settings: Mapping[str, Any] | None, rounds: int) -> float:
    """Return the least time of some runs."""
    launches = context.launches(problem, Choice.of(name, settings))
    plan = context.plan_launches(problem, launches, name)
    rng = np.random.default_rng(5)
    inputs = {a.name: rng.standard_normal(a.shape, np.float32) for a in problem.arguments() if a.role == "in"}
    runner = Runner(plan, Buffers(context, problem.arguments(), inputs), {})
    return min(runner.seconds() for _ in range(rounds))


def some(settings: Iterator[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return about so many of the settings, the best estimates and others alike."""
    listed = [item for item in settings if item]
    return listed[:: max(len(listed) // count, 1)][:count]


def product_samples(context: Any, problem: ConvProblem, count: int, rounds: int) -> Iterator[Sample]:
    """Measure forward convolutions in some splits."""
    grid = forward_grid(problem)
    gathering = (item for item in gemm.candidates(problem, context.planner) if "dense" not in item)
    for settings in some(gathering, count):
        chosen = {name: int(value) for name, value in settings.items()}

        def estimate(chosen: Mapping[str, int] = chosen) -> float:
            return gemm.GemmBuilder(problem, context.planner, grid, chosen).product().cost

        yield Sample(estimate, measure(context, problem, gemm.NAME, settings, rounds))


def filter_samples(context: Any, problem: ConvProblem, count: int, rounds: int) -> Iterator[Sample]:
    """Measure gradients of the weights in some splits."""
    problem = replace(problem, direction="backward_filter", bias=False)
    grid, groups, size = forward_grid(problem), problem.groups, arithmetic_bytes(problem.dtype)
    channels, outputs = problem.in_channels // groups, problem.out_channels // groups
    gathering = (item for item in backward_filter.candidates(problem, context.planner) if "pixels" in item)
    for settings in some(gathering, count):
        chosen = {name: int(value) for name, value in settings.items()}
        tile = backward_filter.filter_tile(context.planner, problem.dtype, outputs, chosen["vectors"])

        def estimate(chosen: Mapping[str, int] = chosen, tile: Any = tile) -> float:
            found = backward_filter.splits_by_cost(
                grid, tile, channels, ceil_div(outputs, tile.columns), groups, size, context.device
            )
            wanted = tuple(chosen[name] for name in ("pixels", "rows", "tiles", "blocks"))
            return next(cost for cost, most, s in found if (most, s.rows, s.tiles, s.blocks) == wanted)

        yield Sample(estimate, measure(context, problem, gemm.NAME, settings, rounds))


def winograd_samples(context: Any, problem: ConvProblem, count: int, rounds: int) -> Iterator[Sample]:
    """Measure Winograd's method with each of its tiles, and the direct method, in the directions that cost differently.

    Backward data is the forward convolution of other channels where there is no stride.
    """
    for direction in ("forward", "backward_data", "backward_filter"):
        one = replace(problem, direction=direction, bias=False)
        if {*one.dilate} != {1} or (direction == "backward_data" and {*one.stride} == {1}):
            continue
        try:
            tiles.expect_served(one)
            sizes = tiles.tiles_of(one)
        except Declined:
            continue
        for tile in sizes:
            geometry = tiles.Geometry.of(one, tile)
            listed = [s for s in winograd.candidates(one, context.planner) if s.get("tile") == tile][:count]
            times = [measure(context, one, winograd.NAME, settings, rounds) for settings in listed]
            if times:
                yield Sample(lambda geometry=geometry: tiles.cost(geometry), min(times))
        geometry = tiles.Geometry.of(one, 2)
        yield Sample(
            lambda geometry=geometry: tiles.direct_cost(geometry), measure(context, one, gemm.NAME, None, rounds)
        )


def error(samples: list[Sample]) -> float:
    """Return the standard deviation of the logarithms of estimates over times."""
    return float(np.std([math.log(sample.estimate() / sample.seconds) for sample in samples]))


# planner -> what measures it, and the modules' names for the constants that its estimates read
PLANNERS: dict[str, tuple[Callable[..., Iterator[Sample]], dict[str, tuple[Any, str]]]] = {
    "product": (product_samples, {"product": (blocking, "COSTS")}),
    "filter": (filter_samples, {"filter": (backward_filter, "COSTS")}),
    "winograd": (winograd_samples, {"winograd": (tiles, "COSTS"), "direct": (tiles, "DIRECT_COSTS")}),
}


def fit(
    samples: list[Sample], places: Mapping[str, tuple[Any, str]], passes: int, names: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Improve one constant after the other, of those with `names` if there are any, as long as estimates get better."""
    constants = {name: dict(costs(name)) for name in places}
    for name, (module, variable) in places.items():
        setattr(module, variable, constants[name])  # the estimates read these from now on
    least = error(samples)
    for _ in range(passes):
        before = least
        for values in constants.values():
            for key in values:
                if key in FIXED or (names and key not in names):
                    continue
                best = values[key]
                for value in [best * multiplier for multiplier in MULTIPLIERS]:
                    values[key] = value
                    now = error(samples)
                    if now < least:
                        least, best = now, value
                values[key] = best
        if before - least < 1e-4:
            break
    return constants


def lines(name: str) -> dict[str, str]:
    """Return the problems of a set or of a file by name."""
    return problem_sets.read(Path(name)) if Path(name).is_file() else problem_sets.lines(name)


def main() -> None:
    """Measure, fit, and print rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("planners", nargs="*", choices=[*PLANNERS, []], help="which planners (default: all)")
    parser.add_argument("--set", default=["classic"], nargs="+", help="problem sets, or files (default: classic)")
    parser.add_argument("--constants", default=[], nargs="+", help="which constants are fitted (default: all)")
    parser.add_argument("--problems", type=int, default=100, help="most problems of the sets")
    parser.add_argument("--samples", type=int, default=6, help="settings of a problem")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of a setting, of which the least counts")
    parser.add_argument("--passes", type=int, default=20, help="most passes over all constants")
    arguments = parser.parse_args()
    context = core.context()
    if not context.device.is_cpu:
        parser.error(f"got {context.device}, expected a CPU device: see CLGRAFT_DEVICE")
    listed = [core.parse(text) for name in arguments.set for text in lines(name).values()]
    problems = [p for p in listed if isinstance(p, ConvProblem) and not p.depthwise][: arguments.problems]
    for name in arguments.planners or PLANNERS:
        samples_of, places = PLANNERS[name]
        samples = [s for p in announced(problems) for s in samples_of(context, p, arguments.samples, arguments.rounds)]
        if not samples:
            continue
        before = error(samples)
        constants = fit(samples, places, arguments.passes, arguments.constants)
        print(f"# {context.device}: {len(samples)} times, deviation {before:.3f} before, {error(samples):.3f} after")
        for planner, values in constants.items():
            for key, value in values.items():
                print(f"cpu       {planner:9} {key:16} {value:8.4g}")


if __name__ == "__main__":
    main()
