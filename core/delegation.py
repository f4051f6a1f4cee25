"""Operators that are others in disguise: another problem's launches with its arguments under other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clgraft.core.plan import Accumulate, Buffer, Constant, Launch, Steps
from clgraft.core.pointwise.expression import read_program
from clgraft.core.pointwise.generate import Loop, generate
from clgraft.core.pointwise.loop import Operand, Result
from clgraft.core.problem import Problem

if TYPE_CHECKING:
    from clgraft.core.context import Context


def delegate(context: Context, problem: Problem, names: Mapping[str, str]) -> Steps:
    """Plan another problem as part of one's own.

    Parameters
    ----------
    context : Context
    problem : Problem
        Its arguments have to hold as many elements as one's own of the new names.
    names : mapping
        The other problem's argument to one's own; those that are not named keep their names.
    """

    def renamed(item: Any) -> Any:
        return type(item)(names.get(item.name, item.name)) if isinstance(item, (Buffer, Accumulate)) else item

    steps = context.choose(problem)[0]
    launches = tuple(
        replace(
            launch,
            arguments=tuple(map(renamed, launch.arguments)),
            writes=tuple(names.get(name, name) for name in launch.writes),
        )
        for launch in steps.launches
    )
    return Steps(launches, steps.workspace_bytes)


def add_vector(
    context: Context, steps: Steps, vector: str, output: str, shape: tuple[int, ...], axis: int, dtype: str
) -> Steps:
    """Add to steps a pass that adds a vector to what they have written, whatever the output's write mode is.

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
        program=read_program("y0 = x0;", 1, ()),
        inputs={0: Operand(Buffer(vector), strides)},
        outputs={0: Result(Buffer(output), output)},
        dtype=dtype,
    )
    added = [_always_adding(launch) for launch in generate(context, loop).items]
    return Steps((*steps.launches, *added), steps.workspace_bytes)


def _always_adding(launch: Launch) -> Launch:
    arguments = (Constant(np.int32(1)) if isinstance(item, Accumulate) else item for item in launch.arguments)
    return replace(launch, arguments=tuple(arguments))
