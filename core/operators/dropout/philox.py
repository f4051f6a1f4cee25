"""Random numbers by Philox inside the kernel that uses them; a mask that elements share is written out first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clgraft.core.operators.dropout.problem import DropoutProblem
from clgraft.core.operators.pointwise.expression import read_assignments
from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result, broadcast_strides
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import has_32_registers
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.problem import ceil_div, round_up

NAME = "philox"

BLOCK = 64  # elements whose random numbers belong together
LANES = 16  # counters of a block
GROUP = 64
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
FEWEST_BLOCKS = 64  # blocks of a work-item at least
DROPOUT, RRELU, RRELU_GRADIENT, MASK = range(4)


def plan(problem: DropoutProblem, planner: Planner) -> Launches:
    """Plan one launch; two where elements share random numbers."""
    arguments = problem.arguments()
    if problem.operator == "rrelu":
        mode = RRELU if problem.direction == "forward" else RRELU_GRADIENT
    else:
        mode = DROPOUT if problem.mask == problem.shape else MASK
    if mode != MASK:
        output = arguments[-1].name
        bound = (*(Buffer(argument.name) for argument in arguments), Accumulate(output))
        return Launches((_launch(problem, planner, mode, bound, arguments[-1].size, (output,)),))
    return _shared(problem, planner)


def _launch(
    problem: DropoutProblem, planner: Planner, mode: int, bound: tuple[Any, ...], count: int, writes: tuple[str, ...]
) -> Launch:
    real = "float64" if problem.dtype == "float64" else "float32"
    scalars = tuple(Scalar(name, real) for name in problem.scalars())
    blocks = ceil_div(count, BLOCK)
    if not planner.device.is_cpu:
        macros = {"MODE": mode, "VL": 4, "QUADS": 1, "SCALAR_ITEMS": 0}
        kernel = planner.kernel("dropout/philox.cl", "apply_random", macros, problem.dtype)
        items = round_up(blocks * LANES // 4, GROUP)
        return Launch(kernel, (items,), (GROUP,), (*bound, *scalars, Constant(np.uint64(count))), writes)
    lanes = max(2, min(LANES, planner.device.vector_width // (2 if problem.dtype == "float64" else 1)))
    together = 2 if has_32_registers(planner.device) else 1
    macros = {"MODE": mode, "VL": lanes, "TOGETHER": together, **flush_defines(problem.dtype, planner.device)}
    kernel = planner.kernel("dropout/philox.cl", "apply_random", macros, problem.dtype)
    share = round_up(max(FEWEST_BLOCKS, ceil_div(blocks, planner.device.compute_units * ITEMS_PER_UNIT)), together)
    sizes = (Constant(np.uint64(count)), Constant(np.uint64(share)))
    return Launch(kernel, (ceil_div(blocks, share),), (1,), (*bound, *scalars, *sizes), writes)


def _shared(problem: DropoutProblem, planner: Planner) -> Launches:
    """Plan the mask into the workspace, then a product with broadcasting."""
    names = [argument.name for argument in problem.arguments()]
    source, output = names[0], names[-1]
    real = 8 if problem.dtype == "float64" else 4
    size = math.prod(problem.mask)
    mask = _launch(problem, planner, MASK, (Buffer("key"), Workspace(0, real), Constant(np.int32(0))), size, (output,))
    inputs = {
        0: Operand(Buffer(source), broadcast_strides(problem.shape, problem.shape)),
        1: Operand(Workspace(0, real), broadcast_strides(problem.mask, problem.shape), "real"),
    }
    loop = Loop(
        shape=problem.shape,
        assignments=read_assignments("y0 = x0 * x1;", 2, ()),
        inputs=inputs,
        outputs={0: Result(Buffer(output), output)},
        folded=(),
        scalars=(),
        alpha="",
        beta="",
        dtype=problem.dtype,
    )
    product = generate(planner, loop)
    return Launches((mask, *product.items), max(size * real, product.workspace_bytes))
