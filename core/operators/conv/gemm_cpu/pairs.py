"""Convolutions of bfloat16 on CPU devices whose processor adds products of pairs of numbers in one instruction.

The products are those of `cpu_gemm` with operands of two numbers: two channels, or for filters two pixels. Sums are
float32; numbers and sums below the smallest normal float32 count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu import backward_filter, phases
from clgraft.core.operators.conv.gemm_cpu.dense import can_be_dense
from clgraft.core.operators.conv.gemm_cpu.gemm import (
    GemmBuilder,
    cheapest,
    product_candidates,
    product_grid,
)
from clgraft.core.operators.conv.grid import dense_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.winograd import tiles as winograd_tiles
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches
from clgraft.core.planning.pairs import NUMBERS, expect_pairs, pair_defines

NAME = "cpu_pairs"
COSTS = costs("pairs")


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search, those of `cpu_gemm`."""
    _expect_served(problem, planner)
    if problem.direction == "backward_filter":
        yield from backward_filter.candidates(problem, planner, backward_filter.pairs_of(planner.device))
    elif phases.has_phases(problem):
        yield {}
        yield from phases.candidates(problem, planner)
    else:
        yield {}
        yield from product_candidates(problem, planner, product_grid(problem), PairBuilder)


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the packing of the weights and the products; filters are `backward_filter`'s."""
    _expect_served(problem, planner)
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if not chosen:
        _expect_fewest_products(problem)
    if problem.direction == "backward_filter":
        return backward_filter.plan(problem, planner, settings, backward_filter.pairs_of(planner.device))
    dense = phases.has_phases(problem) and can_be_dense(problem) and not chosen
    if phases.has_phases(problem) and not dense:
        return phases.plan(problem, planner, chosen, NUMBERS)
    grid = dense_grid(problem) if dense else product_grid(problem)
    if chosen or not grid.one_tap:
        product = PairBuilder(problem, planner, grid, chosen, epilogue).product()
    else:
        product = cheapest(problem, planner, grid, epilogue, PairBuilder)
    return product.builder.launches(product.blocking)


def _expect_served(problem: ConvProblem, planner: Planner) -> None:
    """Decline what the products do not serve."""
    expect_pairs(problem.dtype, planner)
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if problem.direction != "backward_filter":
        expect_even(problem)


def expect_even(problem: ConvProblem) -> None:
    """Decline odd numbers of channels of a group that are summed."""
    summed = problem.in_channels if problem.direction == "forward" else problem.out_channels
    if summed // problem.groups % NUMBERS:
        raise Declined("is for even numbers of channels")


def _expect_fewest_products(problem: ConvProblem) -> None:
    """Decline where Winograd's method, in float32, is estimated to take less time."""
    try:
        winograd_tiles.expect_served(problem)
        geometry = winograd_tiles.choose(problem)
    except Declined:
        return
    if winograd_tiles.cost(geometry) < COSTS["share"] * winograd_tiles.direct_cost(geometry):
        raise Declined("Winograd's method takes less time")


class PairBuilder(GemmBuilder):
    """What the launches of one problem share, with pairs of channels in the place of channels."""

    def __init__(self, problem: ConvProblem, planner: Planner, *rest: Any) -> None:
        super().__init__(problem, planner, *rest)
        self.channels //= NUMBERS
        self.defines.update(pair_defines(planner.device))
