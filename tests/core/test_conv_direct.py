"""The convolution that serves every problem: every direction against float64."""

from __future__ import annotations

import pytest

from clgraft import core
from tests.core.conv_checks import DIRECTIONS, check
from tests.problem_sets import problem_lines

LINES = {**problem_lines("conv"), **problem_lines("depthwise")}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_matches_float64(context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(context, problem, "direct")
    check(context, problem, "direct", accumulate=True, seed=3)
