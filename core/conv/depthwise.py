"""Depthwise convolution on CPU devices: tiles of planes in cache-resident scratch, every tap one offset of a long row.

A plane that lies padded in memory, split by the phases of the stride, turns each tap into one vector sum over the whole
tile, whatever kernel, stride and dilation are; the copy into scratch is small beside the plane's way through memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Constant, Launch, Local, Steps, Workspace

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "depthwise"
OPTIONS = ("-cl-mad-enable",)
FILE = "depthwise_cpu.cl"
VECTORS = 4  # NV
TILE_BYTES = 32 * 1024  # scratch that stays in a core's L1 cache
ITEM_BYTES = 64 * 1024  # of memory traffic that make a work-item worth its dispatch
ITEMS_PER_UNIT = 4
MOST_OF_ONE = 8  # filters of a single input channel; with more, all of them are a product of matrices


@dataclass(frozen=True)
class Axis:
    """One spatial axis: what the kernels get, in their names."""

    i: int
    o: int
    k: int
    s: int
    p: int
    d: int

    @property
    def reach(self) -> int:
        """Distance of the first and the last tap."""
        return (self.k - 1) * self.d

    @property
    def phases(self) -> int:
        """Phases of the stride in which the input is kept."""
        return min(self.s, self.reach + 1)

    @property
    def low(self) -> int:
        """Least position in dy that a line of dx meets, beside the line's number: ceil((p - reach) / s)."""
        return -((self.reach - self.p) // self.s)

    @property
    def more(self) -> int:
        """Positions in dy that a line of dx meets, in all phases together, less one."""
        return (self.s - 1 + self.p) // self.s - self.low


@dataclass(frozen=True)
class Tile:
    """A tile of h lines of w elements; its pitch and plane size in scratch, and the elements of scratch and of results."""

    h: int
    w: int
    pitch: int
    plane_size: int
    scratch: int
    result_size: int
    results: int
    line: int


def axes_of(problem: ConvProblem) -> tuple[Axis, Axis]:
    """Give height and width; a 1-D problem is one row.

    Raises
    ------
    Declined
        If the problem is not depthwise or has three axes.
    """
    if not problem.depthwise:
        raise Declined(f"groups {problem.groups} are not the {problem.in_channels} input channels")
    if problem.ndim > 2:
        raise Declined("has one or two spatial axes")
    sizes = zip(problem.in_size, problem.out_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
    axes = [Axis(*size) for size in sizes]
    return (axes[0], axes[1]) if problem.ndim == 2 else (Axis(1, 1, 1, 1, 0, 1), axes[0])


def _tile(direction: str, height: Axis, width: Axis, h: int, w: int, lanes: int) -> Tile:
    slack = (VECTORS + 1) * lanes
    if direction == "backward_data":
        pitch = w + width.more
        plane_size = (h + height.more) * pitch + slack
        result_size = h * pitch + slack
        line = w * width.s + 2 * lanes
        return Tile(h, w, pitch, plane_size, plane_size, result_size, result_size * height.s * width.s, line)
    pitch = w + width.reach // width.s
    plane_size = (h + height.reach // height.s) * pitch + slack
    return Tile(h, w, pitch, plane_size, plane_size * height.phases * width.phases, h * pitch + slack, h * pitch + slack, 0)


def choose_tile(problem: ConvProblem, height: Axis, width: Axis, lanes: int, itemsize: int, most_bytes: int) -> Tile:
    """Choose the largest tile that stays in the L1 cache; if its halo outweighs it, the largest that fits at all.

    Raises
    ------
    Declined
        If not even a vector of a line fits.
    """
    data = problem.direction == "backward_data"
    lines = -(-height.i // height.s) if data else height.o
    columns = -(-width.i // width.s) if data else width.o
    halo = height.more if data else height.reach // height.s
    for budget, least in ((TILE_BYTES, max(halo, 4)), (8 * TILE_BYTES, max(halo, 4)), (most_bytes, 1)):
        least = min(least, lines)
        w = columns
        while w > lanes or w == columns:
            for count in range(1, -(-lines // least) + 1):
                h = -(-lines // count)
                tile = _tile(problem.direction, height, width, h, w, lanes)
                if (tile.scratch + tile.results + tile.line) * itemsize <= min(budget, most_bytes):
                    return tile
            if w <= lanes:
                break
            w = -(-w // 2)
    raise Declined(f"a line of {width.reach} elements' reach does not fit {most_bytes} bytes of local memory")


def _ints(*values: int) -> tuple[Constant, ...]:
    return tuple(Constant(np.int32(v)) for v in values)


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan one launch, and for the filter a second one if the images are split."""
    if not context.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if problem.in_channels == 1 and problem.out_channels > MOST_OF_ONE:
        raise Declined(f"{problem.out_channels} output channels of one are a product of matrices")
    height, width = axes_of(problem)
    rows = _plan_rows(problem, context, height, width)
    if rows:
        return rows
    itemsize = 8 if problem.dtype == "float64" else 4
    lanes = max(context.device.vector_width * 4 // itemsize, 4)
    channels, multiplier = problem.in_channels, problem.out_channels // problem.in_channels
    taps, planes = height.k * width.k, problem.batch * channels
    ints = taps * 2 + height.s * width.s + 1
    table_bytes = 4 * ints + itemsize * taps + itemsize * lanes * multiplier * taps + 1024
    tile = choose_tile(problem, height, width, lanes, itemsize, context.device.local_memory - table_bytes)
    shape = (
        Constant(np.int64(planes)),
        *_ints(channels, multiplier),
        *(c for name in "ioksp" for c in _ints(getattr(height, name), getattr(width, name))),
        *_ints(height.d, width.d),
        *_ints(tile.h, tile.w, tile.pitch, tile.plane_size),
    )
    scratch = (Local(tile.scratch * itemsize), Local(tile.results * itemsize))
    defines = {"VL": lanes, "NV": VECTORS}
    if problem.direction == "backward_filter":
        return _plan_filter(problem, context, defines, shape, tile, scratch, itemsize)

    data = problem.direction == "backward_data"
    lines, columns = (-(-a.i // a.s) if data else a.o for a in (height, width))
    tiles = (-(-columns // tile.w), -(-lines // tile.h))
    plane_bytes = (height.i * width.i + height.o * width.o * multiplier) * itemsize // (tiles[0] * tiles[1])
    most = max(planes * tiles[0] * tiles[1] // (context.device.compute_units * ITEMS_PER_UNIT), 1)
    item_planes = max(min(-(-ITEM_BYTES // max(plane_bytes, 1)), most, planes), 1)
    kernel = context.kernel(FILE, f"depthwise_{problem.direction}", defines, problem.dtype, OPTIONS)
    size = (*tiles, -(-planes // item_planes))
    if data:
        arguments = (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx")),
            *(*shape, *_ints(item_planes, height.low, width.low, height.more, tile.result_size)),
            *(*scratch, Local(taps * itemsize), Local(taps * 4), Local(taps * 4), Local((height.s * width.s + 1) * 4)),
            Local(tile.line * itemsize),
        )
        return Steps((Launch(kernel, size, (1, 1, 1), arguments, ("dx",)),))
    bias = Buffer("b" if problem.bias else "w")  # without a bias never read
    arguments = (
        *(Buffer("x"), Buffer("w"), bias, Buffer("y"), *_ints(problem.bias), Accumulate("y")),
        *(*shape, *_ints(item_planes), *scratch, Local(taps * itemsize), Local(taps * 4)),
    )
    return Steps((Launch(kernel, size, (1, 1, 1), arguments, ("y",)),))


def _plan_rows(problem, context, height, width):
    itemsize = 8 if problem.dtype == "float64" else 4
    lanes = max(context.device.vector_width * 4 // itemsize, 4)
    M = problem.out_channels // problem.in_channels
    taps = height.k * width.k
    if taps > 49 or not all((a.s == 1 or (a.s == 2 and max(height.d, width.d) == 1 and problem.direction == "forward")) for a in (height, width)):
        return None
    defines = {"VL": lanes, "KH": height.k, "KW": width.k, "SH": height.s, "SW": width.s, "NV": 1}
    if problem.direction == "forward":
        source, target = "x", "y"
        targets, sums, shared, flip = problem.batch * problem.out_channels, 1, M, 0
        ih, iw, oh, ow, ph, pw = height.i, width.i, height.o, width.o, height.p, width.p
    elif problem.direction == "backward_data":
        source, target = "dy", "dx"
        targets, sums, shared, flip = problem.batch * problem.in_channels, M, 1, 1
        ih, iw, oh, ow, ph, pw = height.o, width.o, height.i, width.i, height.reach - height.p, width.reach - width.p
    else:
        return None
    step = 4 * height.d
    tile_h = oh if oh * ow * itemsize < 24 * 1024 else min(oh, max(-(-(16 * 1024) // (ow * itemsize) // step) * step, step))
    tiles = -(-oh // tile_h)
    most = max(targets * tiles // (context.device.compute_units * ITEMS_PER_UNIT), 1)
    item_planes = max(min(-(-ITEM_BYTES // max((ih * iw + oh * ow) * itemsize // tiles, 1)), most, targets), 1)
    channels = targets // problem.batch if problem.batch else 1
    kernel = context.kernel("depthwise_rows.cl", "depthwise_rows", defines, problem.dtype, OPTIONS)
    args = (Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w"), Buffer(target), *_ints(problem.bias), Accumulate(target),
        Constant(np.int64(targets)), *_ints(channels, sums, shared, flip, ih, iw, oh, ow, ph, pw, height.d, width.d, tile_h, item_planes),
        Local(sums * taps * itemsize), Local(lanes * itemsize), Local((tile_h * lanes if ow < lanes else 1) * itemsize))
    return Steps((Launch(kernel, (tiles, -(-targets // item_planes)), (1, 1), args, (target,)),))


def _plan_filter(problem, context, defines, shape, tile, scratch, itemsize) -> Steps:
    height, width = axes_of(problem)
    channels, multiplier = problem.in_channels, problem.out_channels // problem.in_channels
    taps = height.k * width.k
    tiles = -(-height.o // tile.h) * -(-width.o // tile.w) * problem.batch
    items = context.device.compute_units * ITEMS_PER_UNIT
    item_channels, splits = max(channels // items, 1), max(1, min(tiles, -(-items // channels)))
    split_tiles = -(-tiles // splits)
    splits = max(-(-tiles // max(split_tiles, 1)), 1)
    partial = Workspace(0, itemsize)
    count = channels * multiplier * taps
    first = Launch(
        context.kernel(FILE, "depthwise_backward_filter", defines, problem.dtype, OPTIONS),
        (splits, -(-channels // item_channels)),
        (1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *(*shape, *_ints(item_channels, split_tiles)),
            *(*scratch, Local(multiplier * taps * defines["VL"] * itemsize), Local(taps * 4)),
        ),
        ("dw",),
    )
    if splits == 1:
        return Steps((first,), 256)
    second = Launch(
        context.kernel(FILE, "depthwise_sum_splits", defines, problem.dtype, OPTIONS),
        (count,),
        None,
        (partial, Buffer("dw"), Accumulate("dw"), *_ints(splits), Constant(np.int64(count))),
        ("dw",),
    )
    return Steps((first, second), splits * count * itemsize)
