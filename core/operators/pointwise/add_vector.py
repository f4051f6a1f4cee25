"""Adds a vector, such as a bias, to what other launches have written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clgraft.core.operators.pointwise.expression import read_assignments
from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches


def add_vector(
    planner: Planner, planned: Launches, vector: str, output: str, shape: tuple[int, ...], axis: int, dtype: str
) -> Launches:
    """Return launches followed by a pass that adds a vector to their output, whatever the output's write mode is.

    Parameters
    ----------
    vector, output : str
        Arguments: the vector has the size of the output's `axis`.
    shape : tuple of int
        The output's, or one that it can be reshaped to.
    """
    strides = tuple(int(i == axis) for i in range(len(shape)))
    loop = Loop(
        shape=shape,
        assignments=read_assignments("y0 = x0;", 1, ()),
        inputs={0: Operand(Buffer(vector), strides)},
        outputs={0: Result(Buffer(output), output)},
        dtype=dtype,
    )
    added = [_always_adding(launch) for launch in generate(planner, loop).items]
    return Launches((*planned.launches, *added), planned.workspace_bytes)


def _always_adding(launch: Launch) -> Launch:
    arguments = (Constant(np.int32(1)) if isinstance(item, Accumulate) else item for item in launch.arguments)
    return replace(launch, arguments=tuple(arguments))
