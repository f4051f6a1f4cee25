"""Dense layers of large batches in bfloat16 on CPU devices that multiply pairs of numbers: `cpu_panel`'s way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.dense import cpu_panel
from clgraft.core.operators.dense.matrices import product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches
from clgraft.core.planning.pairs import NUMBERS, expect_pairs

NAME = "cpu_pairs"
fuses = cpu_panel.fuses


def candidates(problem: DenseProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search, those of `cpu_panel`."""
    _expect_served(problem, planner)
    yield from cpu_panel.candidates(problem, planner)


def plan(
    problem: DenseProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the product as `cpu_panel` does, with pairs of inputs as operands."""
    _expect_served(problem, planner)
    return cpu_panel.panel_launches(problem, planner, settings, epilogue, NUMBERS)


def _expect_served(problem: DenseProblem, planner: Planner) -> None:
    """Decline what the products do not serve; `cpu_panel` declines the rest."""
    expect_pairs(problem.dtype, planner)
    if problem.direction not in ("backward_bias", "backward_weight") and product_of(problem).t % NUMBERS:
        raise Declined("is for even numbers of inputs")
