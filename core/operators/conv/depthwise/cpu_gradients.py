"""Both gradients of depthwise convolutions on CPU devices in one pass over dy and x, or the filter's alone."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, axes_of, grid_argument, splits_of_images
from clgraft.core.operators.conv.depthwise.cpu_rows import sum_of_splits
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "depthwise_gradients"
FILE = "conv/depthwise/cpu_gradients.cl"
import os
ROWS=int(os.environ.get("DW_ROWS","7")); FEW=int(os.environ.get("DW_FEW","2"))
FILTERS=int(os.environ.get("DW_FILTERS","16")); IMAGES=int(os.environ.get("DW_IMAGES","4"))


def plan(problem, planner: Planner) -> Launches:
    data = not isinstance(problem, ConvProblem)
    problem = problem.conv if data else problem
    if not planner.device.is_cpu: raise Declined('cpu')
    if not data and problem.direction != 'backward_filter': raise Declined('filter')
    height, width = axes_of(problem)
    channels, taps = problem.in_channels, height.taps * width.taps
    if problem.out_channels != channels:
        raise Declined("one filter a channel")
    stride = height.stride
    if stride != width.stride or stride > 2 or max(height.step, width.step) > 1:
        raise Declined("strides 1, 2")
    if taps > 27:
        raise Declined("taps")
    most = vector_lanes(planner.device, problem.dtype)
    half_h, half_w = (ceil_div(a.source, stride) for a in (height, width))
    lanes = _lanes(half_w, most)
    size = arithmetic_bytes(problem.dtype)
    rest_h, rest_w = height.pad % stride, width.pad % stride
    low_w = -((width.taps - 1 - rest_w) // stride)
    shift_w = width.pad // stride + low_w
    columns = (stride - 1 + rest_w) // stride - low_w + 1
    vectors, last = ceil_div(half_w, lanes), max(half_w - lanes, 0)
    lead = max(-shift_w, 0)
    behind = max(last + lanes + shift_w + columns - 1 - width.size, stride * (last + lanes) - width.source, 0)
    plane = min(height.size * width.size, height.source * width.source)
    if plane < max(lead, behind, lanes):
        raise Declined("too small")
    rows = max((ROWS if taps <= 9 else FEW) // stride ** 2, 1) if stride==1 else (int(os.environ.get("DW_ROWS2","2")) if taps<=9 else 1)
    rows = ceil_div(half_h, ceil_div(half_h, rows))
    edge = round_up(max(height.size * width.size, height.source * width.source) + lead + max(behind, 2 * lanes), 16)
    splits, split_images, item_filters = splits_of_images(problem.batch, channels, planner)
    layout = WorkspaceLayout()
    count = channels * taps
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    itemsize = {"float16": 2}.get(problem.dtype, size)
    edges = layout.take((3 + splits * ceil_div(channels, item_filters)) * edge * itemsize, itemsize)
    block = min(FILTERS, item_filters)
    group = IMAGES if plane<=400 else 1
    defines = {"VL": lanes, "R": rows, "KH": height.taps, "KW": width.taps, "S": stride, "PAD_H": rest_h, "PAD_W": rest_w,
       "DATA": int(data), **GRID.defines()}
    if half_h <= 2 * rows and os.environ.get('DW_FIXED','1')=='1':
        defines.update({"XH": height.source, "XW": width.source, "IH": height.size, "IW": width.size})
    first = Launch(
        planner.kernel(FILE, NAME, defines, problem.dtype, MAD_ENABLE),
        (splits, ceil_div(channels, item_filters)), (1, 1),
        (
            Buffer("x"), Buffer("dy"), Buffer("w" if data else "x"), Buffer("dx" if data else "dw"), Buffer("dw"), partial, edges,
            Accumulate("dx" if data else "dw"), Accumulate("dw"), *ints(channels), grid_argument(problem.batch, height, width),
            *ints(lead, edge, block, group, split_images, item_filters),
            Local(block * taps * lanes * size), Local(vectors * (stride + columns) * lanes * size), Local(2 * lanes * size),
        ),
        ("dx", "dw") if data else ("dw",),
    )
    if splits == 1:
        return Launches((first,), layout.nbytes)
    return Launches((first, sum_of_splits(problem, planner, partial, splits, count)), layout.nbytes)

def _lanes(width: int, most: int) -> int:
    if width <= most:
        return min(max(1 << (width - 1).bit_length(), 4), most)
    return most // 2 if 4 * round_up(width, most // 2) <= 3 * round_up(width, most) else most
