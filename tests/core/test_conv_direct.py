"""The convolution that serves every problem, for devices whose compilers are too slow for `test_every_run`."""

from __future__ import annotations

import pytest

from clgraft import core
from tests.core.conv_checks import DIRECTIONS, check
from tests.problem_sets import problem_lines

LINES = problem_lines("conv")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["plain-3x3-bias", "1x1", "3x3-stride-2"])
def test_matches_float64(context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(context, problem, "direct")
    check(context, problem, "direct", accumulate=True, seed=3)
