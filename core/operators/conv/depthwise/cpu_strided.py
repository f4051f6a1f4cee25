"""Depthwise convolution of large strides on CPU devices: vectors along the rows of a long kernel."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.depthwise.axes import axes_of, grid_argument
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "depthwise_strided"
FILE = "conv/depthwise/cpu_strided.cl"


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    lanes, size = vector_lanes(planner.device, problem.dtype), arithmetic_bytes(problem.dtype)
    if problem.out_channels != problem.in_channels:
        raise Declined("serves one filter a channel")
    if width.stride < lanes or width.step != 1:
        raise Declined(f"serves strides from {lanes} and dense rows of taps")
    pitch = round_up(width.taps, lanes)
    length = round_up(max(width.stride * (width.size - 1) + pitch, width.pad + width.source), lanes)
    weights, line = Local(height.taps * pitch * size), Local(length * size)
    sums = Local((pitch if problem.direction == "backward_filter" else width.size * lanes) * size)
    needed = weights.nbytes + line.nbytes + sums.nbytes
    if needed > device.local_memory - 1024:
        raise Declined(f"{needed} bytes of weights and lines do not fit {device.local_memory} bytes of local memory")
    shape = (*ints(problem.in_channels), grid_argument(problem.batch, height, width), *ints(pitch, length))
    kernel = planner.kernel(
        FILE, f"{NAME}_{problem.direction}", {"VL": lanes, **GRID.defines()}, problem.dtype, MAD_ENABLE
    )
    if problem.direction == "backward_filter":
        arguments = (Buffer("x"), Buffer("dy"), Buffer("dw"), Accumulate("dw"))
        return Launches(
            (Launch(kernel, (height.taps, problem.in_channels), (1, 1), (*arguments, *shape, line, sums), ("dw",)),)
        )
    planes = problem.batch * problem.in_channels
    forward = problem.direction == "forward"
    rows = height.size if forward else height.source
    blocks = min(ceil_div(ITEMS_PER_UNIT * device.compute_units, max(planes, 1)), max(rows, 1))
    item_rows = ceil_div(max(rows, 1), blocks)
    size2 = (ceil_div(rows, item_rows), planes)
    if forward:
        bias = Buffer("b" if problem.bias else "w")  # without a bias, this is never read
        head = (Buffer("x"), Buffer("w"), bias, Buffer("y"), *ints(problem.bias), Accumulate("y"))
        arguments = (*head, *shape, *ints(item_rows), weights, line, sums)
        return Launches((Launch(kernel, size2, (1, 1), arguments, ("y",)),))
    arguments = (Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx"), *shape, *ints(item_rows), weights, line)
    return Launches((Launch(kernel, size2, (1, 1), arguments, ("dx",)),))
