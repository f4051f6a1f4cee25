"""Depthwise convolution of large strides on CPU devices: every direction against float64."""

from __future__ import annotations

import pytest

from clgraft import core
from tests.core.conv_checks import DIRECTIONS, check
from tests.problem_sets import problem_lines

LINES = problem_lines("depthwise_strided")

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_upsampling_by_32_is_its(context, direction: str) -> None:
    problem = core.parse(LINES["fcn-64"]).with_direction(direction)
    assert context.plan(problem).algorithm == "depthwise_strided"
    assert check(context, problem, None).tobytes() == check(context, problem, None).tobytes()
