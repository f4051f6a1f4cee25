"""Softmax over few channels of pixels on GPUs: a work-item reads the channels of a pixel once."""

from __future__ import annotations

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar
from clgraft.core.problem import round_up

NAME = "columns_gpu"

REGISTERS = 64  # registers of a work-item for the channels, in elements of 4 bytes; backward has two tensors
GROUP = 128
LARGEST = 2**31 - 1


def plan(problem: SoftmaxProblem, planner: Planner) -> Launches:
    """Plan one launch with a work-item per pixel."""
    if planner.device.is_cpu:
        raise Declined("is for GPUs")
    forward = problem.direction == "forward"
    most = REGISTERS * 4 // arithmetic_bytes(problem.dtype) // (1 if forward else 2)
    if not 0 < problem.channels <= most:
        raise Declined(f"has registers for {most} channels")
    items = round_up(problem.images * problem.pixels, GROUP)
    if items > LARGEST:
        raise Declined("counts pixels in 32 bits")
    macros = {"LOG": int(problem.log), "CHANNELS": problem.channels}
    kernel = planner.kernel("softmax/columns_gpu.cl", f"softmax_columns_{problem.direction}", macros, problem.dtype)
    names = [argument.name for argument in problem.arguments()]
    bound = (
        *(Buffer(name) for name in names),
        Accumulate(names[-1]),
        Scalar("scale", "float64" if problem.dtype == "float64" else "float32"),
        *(Constant(np.uint32(size)) for size in (problem.images, problem.pixels)),
    )
    return Launches((Launch(kernel, (items,), (GROUP,), bound, (names[-1],)),))
