"""Depthwise convolution on CPU devices: tiles of planes in cache-resident scratch, every tap one offset of a long row.

A plane that lies padded in memory, split by the phases of the stride, turns each tap into one vector sum over the whole
tile, for any kernel, stride and dilation. The copy into scratch costs little compared with reading the plane.
"""

from __future__ import annotations

from dataclasses import dataclass

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PLANE_TILE
from clgraft.core.operators.conv.depthwise.axes import (
    PlaneAxis,
    axes_of,
    grid_argument,
    planes_per_item,
    splits_of_images,
)
from clgraft.core.operators.conv.depthwise.cpu_rows import with_sum
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import WHOLE, Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "depthwise"
FILE = "conv/depthwise/cpu.cl"
VECTORS = 4  # vectors that are summed together, the kernels' NV
TILE_BYTES = 32 * 1024  # size of scratch that stays in a core's L1 cache


@dataclass(frozen=True)
class PlaneTile:
    """A tile of h lines of w elements: its pitch and plane size in scratch, and how many elements its buffers have."""

    h: int
    w: int
    pitch: int
    plane_size: int
    scratch: int
    result_size: int
    results: int
    line: int


def _tile(direction: str, height: PlaneAxis, width: PlaneAxis, h: int, w: int, lanes: int) -> PlaneTile:
    slack = (VECTORS + 1) * lanes
    if direction == "backward_data":
        pitch = w + width.more
        plane_size = (h + height.more) * pitch + slack
        result_size = h * pitch + slack
        line = w * width.stride + 2 * lanes
        return PlaneTile(
            h, w, pitch, plane_size, plane_size, result_size, result_size * height.stride * width.stride, line
        )
    pitch = w + width.reach // width.stride
    plane_size = (h + height.reach // height.stride) * pitch + slack
    return PlaneTile(
        h, w, pitch, plane_size, plane_size * height.phases * width.phases, h * pitch + slack, h * pitch + slack, 0
    )


def choose_tile(
    problem: ConvProblem, height: PlaneAxis, width: PlaneAxis, lanes: int, itemsize: int, most_bytes: int
) -> PlaneTile:
    """Choose the largest tile that stays in the L1 cache; if its halo outweighs it, the largest that fits at all.

    Raises
    ------
    Declined
        If not even a vector of a line fits.
    """
    data = problem.direction == "backward_data"
    lines = ceil_div(height.source, height.stride) if data else height.size
    columns = ceil_div(width.source, width.stride) if data else width.size
    halo = height.more if data else height.reach // height.stride
    for budget, least in ((TILE_BYTES, max(halo, 4)), (8 * TILE_BYTES, max(halo, 4)), (most_bytes, 1)):
        least = min(least, lines)
        w = columns
        while w > lanes or w == columns:
            for count in range(1, ceil_div(lines, least) + 1):
                h = ceil_div(lines, count)
                tile = _tile(problem.direction, height, width, h, w, lanes)
                if (tile.scratch + tile.results + tile.line) * itemsize <= min(budget, most_bytes):
                    return tile
            if w <= lanes:
                break
            w = ceil_div(w, 2)
    raise Declined(f"a line of {width.reach} elements' reach does not fit {most_bytes} bytes of local memory")


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward, without inputs as large as the result."""
    return problem.direction == "forward" and WHOLE not in epilogue.extras


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    size, lanes = arithmetic_bytes(problem.dtype), vector_lanes(planner.device, problem.dtype)
    channels, multiplier = problem.in_channels, problem.out_channels // problem.in_channels
    taps, planes = height.taps * width.taps, problem.batch * channels
    tables = 4 * (taps * 2 + height.stride * width.stride + 1) + size * taps * (1 + lanes * multiplier) + 1024
    tile = choose_tile(problem, height, width, lanes, size, planner.device.local_memory - tables)
    low = {"low_h": height.low, "low_w": width.low, "more_h": height.more}
    sizes = {name: getattr(tile, name) for name in ("h", "w", "pitch", "plane_size", "result_size")}
    shape = (
        *ints(channels, multiplier),
        *(grid_argument(problem.batch, height, width), PLANE_TILE.pack({**sizes, **low})),
    )
    defines = {"VL": lanes, "NV": VECTORS, **GRID.defines(), **PLANE_TILE.defines(), **epilogue_defines(epilogue)}
    kernel = planner.kernel(FILE, f"depthwise_{problem.direction}", defines, problem.dtype, MAD_ENABLE)
    scratch = (Local(tile.scratch * size), Local(tile.results * size))
    if problem.direction == "backward_filter":
        tiles = ceil_div(height.size, tile.h) * ceil_div(width.size, tile.w) * problem.batch
        splits, split_tiles, item_channels = splits_of_images(tiles, channels, planner)
        count, layout = problem.out_channels * taps, WorkspaceLayout()
        partial = layout.take(splits * count * size if splits > 1 else 0, size)
        launch = Launch(
            kernel,
            (splits, ceil_div(channels, item_channels)),
            (1, 1),
            (
                *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
                *(*shape, *ints(item_channels, split_tiles)),
                *(*scratch, Local(multiplier * taps * lanes * size), Local(taps * 4)),
            ),
            ("dw",),
        )
        return with_sum(launch, problem, planner, partial, splits, count, layout)

    forward = problem.direction == "forward"
    lines, columns = (a.size if forward else ceil_div(a.source, a.stride) for a in (height, width))
    tiles_w, tiles_h = ceil_div(columns, tile.w), ceil_div(lines, tile.h)
    plane_bytes = (height.source * width.source + height.size * width.size * multiplier) * size
    item_planes = planes_per_item(planes, tiles_w * tiles_h, plane_bytes, planner)
    if forward:
        output = "y"
        arguments = (
            *(Buffer("x"), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer("y"), *ints(problem.bias), Accumulate("y")),
            *(*shape, *ints(item_planes), *scratch, Local(taps * size), Local(taps * 4)),
            *epilogue_arguments(epilogue, problem.dtype),
        )
    else:
        output = "dx"
        arguments = (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *(*shape, *ints(item_planes)),
            *(*scratch, Local(taps * size), Local(taps * 4), Local(taps * 4)),
            *(Local((height.stride * width.stride + 1) * 4), Local(tile.line * size)),
        )
    size3 = (tiles_w, tiles_h, ceil_div(planes, item_planes))
    return Launches((Launch(kernel, size3, (1, 1, 1), arguments, (output,)),))
