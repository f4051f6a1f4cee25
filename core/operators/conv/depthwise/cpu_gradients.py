"""Gradients of depthwise convolutions on CPU devices: the filter's, or both in one pass over x and dy.

The vectors of dy that the data's gradient multiplies with the taps are those that the taps' gradients multiply with x.
"""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.depthwise import cpu_fixed
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, axes_of, grid_argument, splits_of_images
from clgraft.core.operators.conv.depthwise.cpu_rows import L1_BYTES, past_from, with_sum
from clgraft.core.operators.conv.past_caches import past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "depthwise_gradients"
FILE = "conv/depthwise/cpu_gradients.cl"
MOST_TAPS, MOST_OF_AXIS = 25, 7  # most taps whose sums stay in registers, and most of a row or a column
FEW_TAPS = 9
ROWS = {(1, True): 7, (1, False): 4, (2, True): 2, (2, False): 1}  # of a block, by the stride and for few taps or more
ROWS_OF_LARGE = {1: 4, 2: 1}  # where x and dy are more than a quarter of the L1 cache: fewer lines of memory at a time
PLANE_BYTES = 512 * 1024  # of x and dy together, which have to stay in a core's L2 cache
TABLE_BYTES = 12 * 1024  # of masks, which have to stay in the L1 cache
SMALL_PLANE = 400  # pixels up to which sums stay in registers for several images
IMAGES, FILTERS = 8, 16  # of small planes, and whose sums are in local memory at once
RESERVED = 1024  # bytes of local memory that drivers keep


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan one launch for the filter's gradient; a second one if the images are split."""
    axes_of(problem)
    if problem.direction != "backward_filter":
        raise Declined("serves backward_filter")
    return plan_gradients(problem, planner, data=False)


def plan_gradients(problem: ConvProblem, planner: Planner, data: bool) -> Launches:
    """Plan one launch for the filter's gradient and, if asked for, the data's; a second one if the images are split.

    Parameters
    ----------
    problem : ConvProblem
        In any direction.
    planner : Planner
    data : bool
        Whether dx is computed, too.
    """
    device = planner.device
    height, width = axes_of(problem)
    if not (device.is_cpu and has_32_registers(device)):
        raise Declined("made for CPU devices with 32 vector registers")
    channels, taps, stride = problem.in_channels, height.taps * width.taps, height.stride
    if problem.ndim != 2 or problem.out_channels != channels:
        raise Declined("serves two spatial axes and one filter a channel")
    if stride != width.stride or stride > 2 or max(height.step, width.step) > 1:
        raise Declined("serves strides of 1 or 2 on both axes without dilation")
    if taps > MOST_TAPS or max(height.taps, width.taps) > MOST_OF_AXIS:
        raise Declined(f"the sums of {height.taps} x {width.taps} taps do not fit the registers")
    if problem.batch * channels < 2 * device.compute_units:
        raise Declined(f"{problem.batch * channels} planes leave cores idle")
    size = arithmetic_bytes(problem.dtype)
    pixels = (height.source * width.source, height.size * width.size)
    if sum(pixels) * size > PLANE_BYTES:
        raise Declined(f"serves planes that stay in the L2 cache, got {sum(pixels) * size} bytes of x and dy")
    half_h, half_w = (ceil_div(axis.source, stride) for axis in (height, width))
    lanes = _lanes_of_rows(half_w, vector_lanes(device, problem.dtype))
    columns, before, behind = _reach(width, half_w, lanes)
    if min(pixels) < max(before, behind, lanes):
        raise Declined(f"serves planes of at least {max(before, behind, lanes)} pixels, got {min(pixels)}")
    most = ROWS[stride, taps <= FEW_TAPS]
    if sum(pixels) * size > L1_BYTES // 4:
        most = min(most, ROWS_OF_LARGE[stride])
    rows = ceil_div(half_h, ceil_div(half_h, most))
    splits, split_images, item_filters = splits_of_images(problem.batch, channels, planner)
    items = ceil_div(channels, item_filters)
    sums, tables = taps * lanes * size, ceil_div(half_w, lanes) * (stride + columns) * lanes * size
    spare = 2 * lanes * size
    at_once = min(FILTERS, item_filters, (device.local_memory - RESERVED - tables - spare) // sums)
    if tables > TABLE_BYTES or at_once < 1:
        raise Declined(f"{tables} bytes of masks and {sums} of sums do not fit the caches")
    layout, count = WorkspaceLayout(), channels * taps
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    plane, itemsize = max(pixels) + before + max(behind, 2 * lanes), problem.arguments()[0].nbytes
    itemsize //= problem.arguments()[0].size
    edges = layout.take((3 + data * splits * items) * plane * itemsize, itemsize)
    defines = {
        **{"VL": lanes, "R": rows, "KH": height.taps, "KW": width.taps, "S": stride, "DATA": int(data)},
        **{"PAD_H": height.pad % stride, "PAD_W": width.pad % stride, **GRID.defines()},
    }
    if half_h <= 2 * rows and not cpu_fixed.reserved(problem):
        defines.update({"XH": height.source, "XW": width.source, "IH": height.size, "IW": width.size})
    if data and width.source % lanes == 0:
        of_data = problem.with_direction("backward_data")
        defines.update(past_caches(planner, of_data, lanes, past_from(device)))
    result = "dx" if data else "dw"
    first = Launch(
        planner.kernel(FILE, NAME, defines, problem.dtype, MAD_ENABLE),
        (splits, items),
        (1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("w" if data else "x"), Buffer(result), Buffer("dw")),
            *(partial, edges, Accumulate(result), Accumulate("dw"), *ints(channels)),
            *(grid_argument(problem.batch, height, width), *ints(before, plane, at_once)),
            *ints(IMAGES if min(pixels) <= SMALL_PLANE else 1, split_images, item_filters),
            *(Local(at_once * sums), Local(tables), Local(spare)),
        ),
        ("dx", "dw") if data else ("dw",),
    )
    return with_sum(first, problem, planner, partial, splits, count, layout)


def _lanes_of_rows(width: int, most: int) -> int:
    """Choose a vector's lanes: fewer than the device's where a row is shorter, or fills a quarter less of them."""
    if width > most and 4 * round_up(width, most // 2) <= 3 * round_up(width, most):
        return most // 2
    return cpu_fixed.lanes_of_rows(width, most)


def _reach(width: PlaneAxis, half_w: int, lanes: int) -> tuple[int, int, int]:
    """Return the vectors of dy that a block's line meets, and how far loads reach before a row and after it."""
    rest, last = width.pad % width.stride, max(half_w - lanes, 0)
    low = -((width.taps - 1 - rest) // width.stride)
    columns = (width.stride - 1 + rest) // width.stride - low + 1
    shift = width.pad // width.stride + low
    of_dy = last + lanes + shift + columns - 1 - width.size
    return columns, max(-shift, 0), max(of_dy, width.stride * (last + lanes) - width.source, 0)
