"""Depthwise convolution on CPU devices, straight from memory: strides of 1 with any dilation, strides of 2 without.

Several rows of results share the vectors they load, taps are unrolled, and nothing is copied: what is left is memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PLANE_SUMS
from clgraft.core.operators.conv.depthwise.axes import (
    PlaneAxis,
    axes_of,
    grid_argument,
    planes_per_item,
    splits_of_images,
    sum_of_splits,
    sums_argument,
)
from clgraft.core.operators.conv.past_caches import past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.epilogue import WHOLE, Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Workspace, ints
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "depthwise_rows"
ROWS = {1: 4, 2: 2}  # rows of results that share their loads, by their stride: more read more lines at a time
MOST_TAPS = 49  # most taps that are unrolled
MOST_SUMS = 27  # registers for a filter's sums, of 32; processors with 16 registers have half of them
TILE_BYTES = 16 * 1024  # bytes of a tile's results where a plane is larger than the L1 cache
L1_BYTES = 32 * 1024  # a core's L1 cache; planes of more than half of it are read and written in the order of memory
PAST_BYTES = 2**25  # of a result, or more where caches keep these: from there on it gains to store it past them
# settings that a search tries: rows, and work-items per core
SEARCHED_ROWS = (4, 2, 8)
SEARCHED_ITEMS = (1, 2, 4, 8, 16)
MOST_ITEMS = 64


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then ``rows`` that share loads, and ``items`` per core.

    The work of a filter's gradient is split otherwise: it has rows alone.
    """
    yield {}
    for rows in SEARCHED_ROWS:
        if problem.direction == "backward_filter":
            yield {"rows": rows}
            continue
        for items in SEARCHED_ITEMS:
            yield {"rows": rows, "items": items}


def past_from(device: DeviceInfo) -> float:
    """Return how many times as large as the least that outgrows the caches a result is from `PAST_BYTES` on."""
    return max(PAST_BYTES / device.kept_in_caches, 1.0)


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward, without inputs as large as the result."""
    return problem.direction == "forward" and WHOLE not in epilogue.extras


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    usual = ROWS[min(problem.stride[0], 2)] if problem.direction == "forward" and problem.ndim == 2 else ROWS[1]
    rows, items = chosen.pop("rows", usual), chosen.pop("items", 0)
    if chosen or rows not in SEARCHED_ROWS or not 0 <= items <= MOST_ITEMS:
        raise Declined(f"got settings {settings}, expected rows of {SEARCHED_ROWS} and items up to {MOST_ITEMS}")
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    taps = height.taps * width.taps
    if taps > MOST_TAPS:
        raise Declined(f"{taps} taps are too many to unroll")
    strides = (height.stride, width.stride)
    if max(strides) > 2 or (max(strides) == 2 and max(height.step, width.step) > 1):
        raise Declined("serves strides of 1, or of 2 without dilation")
    if problem.direction == "backward_filter":
        return _filter(problem, planner, height, width, rows)
    if problem.direction == "forward":
        return _rows(problem, planner, height, width, rows, items, epilogue)
    if strides == (1, 1):
        height, width = (a.turned for a in (height, width))
        return _rows(problem, planner, height, width, rows, items)
    if strides == (2, 2):
        return _spread(problem, planner, height, width, rows, items)
    raise Declined("serves backward_data at the same stride on both axes")


def _defines(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int) -> dict[str, int]:
    return {
        "VL": vector_lanes(planner.device, problem.dtype),
        "R": rows,
        "KH": height.taps,
        "KW": width.taps,
        **GRID.defines(),
        **PLANE_SUMS.defines(),
    }


def _tile_lines(lines: int, line_bytes: int, step: int) -> int:
    """Return the lines of a tile: all, or for a large plane a multiple of `step` lines that stays in the L1 cache."""
    if lines * line_bytes <= 3 * TILE_BYTES // 2:
        return max(lines, 1)
    return min(lines, max(TILE_BYTES // line_bytes // step, 1) * step)


def _planes(planes: int, tiles: int, plane_bytes: int, planner: Planner, items: int) -> int:
    """Return the planes of a work-item, each core having about `items` of these; without them the heuristic's."""
    if not items:
        return planes_per_item(planes, tiles, plane_bytes, planner)
    return min(max(ceil_div(planes * tiles, planner.device.compute_units * items), 1), max(planes, 1))


def _rows(
    problem: ConvProblem,
    planner: Planner,
    height: PlaneAxis,
    width: PlaneAxis,
    rows: int,
    items: int,
    epilogue: Epilogue | None = None,
) -> Launches:
    forward = problem.direction == "forward"
    source, target = ("x", "y") if forward else ("dy", "dx")
    channels = problem.out_channels if forward else problem.in_channels
    sums = 1 if forward else problem.out_channels // problem.in_channels
    size = arithmetic_bytes(problem.dtype)
    defines = {**_defines(problem, planner, height, width, rows), "SH": height.stride, "SW": width.stride}
    lanes, targets = defines["VL"], problem.batch * channels
    defines.update(past_caches(planner, problem, lanes, past_from(planner.device)))
    defines.update(flush_defines(problem.dtype, planner.device))
    plane_bytes = (height.source * width.source + height.size * width.size) * size
    tile_h = _tile_lines(height.size, width.size * size, rows * height.step)
    if width.size > lanes and plane_bytes > L1_BYTES // 2:
        defines["BY_ROWS"] = 1
        tile_h = height.size if targets >= planner.device.compute_units * ITEMS_PER_UNIT else tile_h
    tiles = ceil_div(height.size, tile_h)
    item_planes = _planes(targets, tiles, plane_bytes, planner, items)
    with_epilogue = {**defines, **epilogue_defines(epilogue)}
    launch = Launch(
        planner.kernel("conv/depthwise/cpu_rows.cl", "depthwise_rows", with_epilogue, problem.dtype, MAD_ENABLE),
        (tiles, ceil_div(targets, item_planes)),
        (1, 1),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target)),
            *(sums_argument(problem), grid_argument(problem.batch, height, width), *ints(tile_h, item_planes)),
            *(Local(sums * height.taps * width.taps * size), Local(lanes * size)),
            Local((tile_h * lanes if width.size < lanes else 1) * size),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def _spread(
    problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int, items: int
) -> Launches:
    multiplier = problem.out_channels // problem.in_channels
    size = arithmetic_bytes(problem.dtype)
    defines = {
        **_defines(problem, planner, height, width, rows),
        "R": rows // 2,
        "PAD_H": height.pad % 2,
        "PAD_W": width.pad % 2,
    }
    defines.update(past_caches(planner, problem, defines["VL"], past_from(planner.device)))
    defines.update(flush_defines(problem.dtype, planner.device))
    planes = problem.batch * problem.in_channels
    half_h = ceil_div(height.source, 2)
    tile_h = _tile_lines(half_h, 2 * width.source * size, rows)
    tiles = ceil_div(half_h, tile_h)
    plane_bytes = (height.source * width.source + height.size * width.size * multiplier) * size
    item_planes = _planes(planes, tiles, plane_bytes, planner, items)
    launch = Launch(
        planner.kernel("conv/depthwise/cpu_spread.cl", "depthwise_spread", defines, problem.dtype, MAD_ENABLE),
        (tiles, ceil_div(planes, item_planes)),
        (1, 1),
        (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *ints(problem.in_channels, multiplier),
            *(grid_argument(problem.batch, height, width), *ints(tile_h, item_planes)),
            *(Local(multiplier * height.taps * width.taps * size), Local(2 * defines["VL"] * size)),
        ),
        ("dx",),
    )
    return Launches((launch,))


def _filter(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, rows: int) -> Launches:
    taps, filters = height.taps * width.taps, problem.out_channels
    wide = has_32_registers(planner.device)
    if taps > (MOST_SUMS if wide else MOST_SUMS // 2):
        raise Declined(f"the sums of {taps} taps do not fit the registers")
    size = arithmetic_bytes(problem.dtype)
    defines = {**_defines(problem, planner, height, width, rows), "SH": height.stride, "SW": width.stride}
    if taps > MOST_SUMS // 2:
        defines["R"] = rows // 2
    tile_h = _tile_lines(height.size, width.size * size, rows * height.step)
    tiles = problem.batch * ceil_div(height.size, tile_h)
    splits, split_tiles, item_filters = splits_of_images(tiles, filters, planner)
    count, layout = filters * taps, WorkspaceLayout()
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    first = Launch(
        planner.kernel(
            "conv/depthwise/cpu_rows_backward_filter.cl", "depthwise_rows_filter", defines, problem.dtype, MAD_ENABLE
        ),
        (splits, ceil_div(filters, item_filters)),
        (1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *ints(problem.in_channels, filters // problem.in_channels),
            *(grid_argument(problem.batch, height, width), *ints(tile_h, split_tiles, item_filters)),
            Local(taps * defines["VL"] * size),
        ),
        ("dw",),
    )
    return with_sum(first, problem, planner, partial, splits, count, layout)


def with_sum(
    products: Launch,
    problem: ConvProblem,
    planner: Planner,
    partial: Workspace,
    splits: int,
    count: int,
    layout: WorkspaceLayout,
) -> Launches:
    """Return a launch that computes filters, and what adds its splits, if there are several, in a fixed order.

    Parameters
    ----------
    products : Launch
    problem : ConvProblem
    planner : Planner
    partial : Workspace
        The splits' filters, one after the other; not used by one split, which writes the result.
    splits, count : int
        How many there are, and elements of one.
    layout : WorkspaceLayout
        With `partial` in it.
    """
    if splits == 1:
        return Launches((products,), layout.nbytes)
    kernel = planner.kernel("conv/depthwise/sum.cl", "depthwise_sum_splits", {}, problem.dtype, MAD_ENABLE)
    return Launches((products, sum_of_splits(kernel, partial, splits, count)), layout.nbytes)
