"""Convolutions in channels last that are one product of matrices, by the kernels of dense layers.

With kernels of one tap, stride 1 and no padding, each pixel is a row. A kernel of the input's size that stands in one
place takes a whole image as a row: its taps lie in memory as the image does.
"""

from __future__ import annotations

import math
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "dense"
DIRECTIONS = {"backward_filter": "backward_weight"}  # the dense layer's word where it has another
LARGEST = 2**31 - 1


def dense_layer(problem: ConvProblem) -> DenseProblem:
    """Return the dense layer that a convolution in channels last is; its arguments have the same names.

    Raises
    ------
    Declined
        If it is none.
    """
    if problem.groups > 1:
        raise Declined(f"{problem.groups} groups are no single product")
    if any((*problem.pad_begin, *problem.pad_end)):
        raise Declined("is for problems without padding")
    taps, pixels = math.prod(problem.kernel), math.prod(problem.out_size)
    of_pixels = taps == 1 and math.prod(problem.stride) == 1
    if not of_pixels and not (problem.kernel == problem.in_size and math.prod(problem.dilate) == 1):
        raise Declined("is for kernels of one tap with stride 1, and for kernels of the input's size")
    if problem.batch * pixels > LARGEST or problem.in_channels * taps > LARGEST:
        raise Declined("has more rows or columns than 32 bits count")
    return DenseProblem(
        direction=DIRECTIONS.get(problem.direction, problem.direction),
        batch=problem.batch * pixels,
        inputs=problem.in_channels * taps,
        outputs=problem.out_channels,
        bias=problem.bias,
        dtype=problem.dtype,
    )


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward; `plan` declines where the dense layer has none."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan the dense layer."""
    dense: Any = dense_layer(problem)
    return delegate(planner, dense, {}) if epilogue is None else planner.fused(dense, epilogue)
