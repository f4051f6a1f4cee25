"""Filter gradient of depthwise convolution of small planes on CPU devices: vectors run over the ends of short rows."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.depthwise.axes import axes_of, grid_argument, splits_of_images
from clgraft.core.operators.conv.depthwise.cpu_rows import with_sum
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "depthwise_flat"
FILE = "conv/depthwise/cpu_flat.cl"
MOST_MASKS = 12 * 1024  # most bytes of masks, which have to stay in the L1 cache together with the planes
FILTERS = (16, 8, 4, 1)  # filters whose sums are in local memory at once, the kernel's FILTERS: the most that fit
MOST_SUMS = 27  # registers for a filter's sums, of 32; processors with 16 registers have half of them


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    if problem.direction != "backward_filter":
        raise Declined("serves backward_filter")
    lanes, taps = vector_lanes(planner.device, problem.dtype), height.taps * width.taps
    if height.stride != 1 or width.stride != 1 or width.source != width.size:
        raise Declined("serves stride 1 where input and output are of one width")
    if width.size * 4 > lanes * 3 or height.size * width.size < lanes:
        raise Declined(f"serves planes of at least {lanes} pixels, a vector, of rows shorter than 3/4 of one")
    vectors = ceil_div(height.size * width.size, lanes)
    size = arithmetic_bytes(problem.dtype)
    mask_bytes = vectors * taps * lanes * size
    if mask_bytes > min(MOST_MASKS, planner.device.local_memory // 2):
        raise Declined(f"{mask_bytes} bytes of masks do not stay in the L1 cache")
    if taps > (MOST_SUMS if has_32_registers(planner.device) else MOST_SUMS // 2):
        raise Declined(f"the sums of {taps} taps do not fit the registers")
    tables = (Local(taps * 4), Local(mask_bytes))
    room = planner.device.local_memory - taps * 4 - mask_bytes
    at_once = next(count for count in FILTERS if count == 1 or count * taps * lanes * size <= room)
    defines = {"VL": lanes, "KH": height.taps, "KW": width.taps, "SH": 1, "SW": 1, "FILTERS": at_once, **GRID.defines()}
    filters = problem.out_channels
    splits, split_images, item_filters = splits_of_images(problem.batch, filters, planner)
    count, layout = filters * taps, WorkspaceLayout()
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    first = Launch(
        planner.kernel(FILE, "depthwise_flat_filter", defines, problem.dtype, MAD_ENABLE),
        (splits, ceil_div(filters, item_filters)),
        (1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *ints(problem.in_channels, filters // problem.in_channels),
            *(grid_argument(problem.batch, height, width), *ints(vectors, split_images, item_filters)),
            *(Local(at_once * taps * lanes * size), *tables),
        ),
        ("dw",),
    )
    return with_sum(first, problem, planner, partial, splits, count, layout)
