"""Depthwise convolution of large strides on CPU devices: vectors along the rows of a long kernel."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise.axes import arithmetic_bytes, axes_of, ints, vector_lanes
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local

NAME = "depthwise_strided"
FILE = "conv/depthwise/cpu_strided.cl"
OPTIONS = ("-cl-mad-enable",)
ITEMS_PER_UNIT = 4


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    lanes, size = vector_lanes(problem, planner), arithmetic_bytes(problem)
    if problem.out_channels != problem.in_channels:
        raise Declined("serves one filter a channel")
    if width.s < lanes or width.d != 1:
        raise Declined(f"serves strides from {lanes} and dense rows of taps")
    pitch = -(-width.k // lanes) * lanes
    length = -(-max(width.s * (width.o - 1) + pitch, width.p + width.i) // lanes) * lanes
    weights, line = Local(height.k * pitch * size), Local(length * size)
    sums = Local((pitch if problem.direction == "backward_filter" else width.o * lanes) * size)
    needed = weights.nbytes + line.nbytes + sums.nbytes
    if needed > device.local_memory - 1024:
        raise Declined(f"{needed} bytes of weights and lines do not fit {device.local_memory} bytes of local memory")
    shape = (
        *ints(problem.in_channels, height.i, width.i, height.o, width.o, height.k, width.k),
        *ints(height.s, width.s, height.p, width.p, height.d, pitch, length),
    )
    kernel = planner.kernel(FILE, f"{NAME}_{problem.direction}", {"VL": lanes}, problem.dtype, OPTIONS)
    if problem.direction == "backward_filter":
        arguments = (Buffer("x"), Buffer("dy"), Buffer("dw"), Accumulate("dw"), *ints(problem.batch))
        return Launches(
            (Launch(kernel, (height.k, problem.in_channels), (1, 1), (*arguments, *shape, line, sums), ("dw",)),)
        )
    planes = problem.batch * problem.in_channels
    forward = problem.direction == "forward"
    rows = height.o if forward else height.i
    blocks = min(-(-ITEMS_PER_UNIT * device.compute_units // max(planes, 1)), max(rows, 1))
    item_rows = -(-max(rows, 1) // blocks)
    size2 = (-(-rows // item_rows), planes)
    if forward:
        bias = Buffer("b" if problem.bias else "w")  # without a bias never read
        head = (Buffer("x"), Buffer("w"), bias, Buffer("y"), *ints(problem.bias), Accumulate("y"))
        arguments = (*head, *shape, *ints(item_rows), weights, line, sums)
        return Launches((Launch(kernel, size2, (1, 1), arguments, ("y",)),))
    arguments = (Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx"), *shape, *ints(item_rows), weights, line)
    return Launches((Launch(kernel, size2, (1, 1), arguments, ("dx",)),))
