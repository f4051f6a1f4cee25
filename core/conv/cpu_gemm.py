"""Convolution on CPU devices, forward and backward data: a product of matrices over cache-sized panels of pixels.

The method is the one of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008) with the
packing of the second matrix replaced by im2col: no im2col buffer ever leaves the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clgraft.core.conv import cpu_gemm_filter
from clgraft.core.conv.cpu_gemm_grid import Grid, Tile, backward_data_grids, forward_grid, in_3d, ints, itemsize
from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Constant, Launch, Local, Steps, Workspace

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "cpu_gemm"
OPTIONS = ("-cl-mad-enable",)
ALIGN = 256  # bytes, of parts of the workspace
PANEL_BYTES = 448 * 1024  # about half of a core's L2 cache
RUN_INTS = 7
PACK_ELEMENTS = 16384  # of a work-item that packs weights


def register_tile(context: Context, dtype: str) -> Tile:
    """Give the tile that fills the device's vector registers: 32 of 512 bits, or 16 of 256."""
    lanes = max(context.device.vector_width, 4)
    rows = 8 if lanes >= 16 else 4
    return Tile(rows, 3, lanes // 2 if dtype == "float64" else lanes)


@dataclass(frozen=True)
class Blocking:
    """How a grid is split: tiles of pixels and row tiles of a work-group, source rows of a panel; local memory."""

    tiles: int
    row_tiles: int
    part: int
    local_bytes: tuple[int, ...]


def _blockings(
    grid: Grid, tile: Tile, m_tiles: int, channels: int, size: int, keep: bool, local_memory: int
) -> Iterator[Blocking]:
    rows = grid.source_rows * channels
    row_size = max(grid.row_taps, 1) * tile.columns
    for tiles in range(1, 9):
        runs, elements = grid.run_counts(tile.columns, tiles * tile.columns)
        elements += (runs + 1) * (grid.phases + 1) * tile.lanes
        pieces = max(elements, tile.rows * tile.columns) * size
        for row_tiles in sorted({-(-m_tiles // n) for n in range(1, m_tiles + 1)}):
            kept = row_tiles * tiles * tile.rows * tile.columns * size if keep else size
            rest = pieces + runs * RUN_INTS * 4 + kept + 4 * 128
            part = (min(PANEL_BYTES, local_memory - rest) // (tiles * size) - tile.lanes) // row_size
            if part < 1 and rows:
                continue
            parts = max(-(-rows // max(part, 1)), 1)
            part = max(-(-rows // parts), 1)
            panel = tiles * (part * row_size + tile.lanes) * size
            yield Blocking(tiles, row_tiles, part, (panel, pieces, runs * RUN_INTS * 4, kept))


def choose_blocking(
    grid: Grid, tile: Tile, m_tiles: int, channels: int, groups: int, size: int, keep: bool, device: Any
) -> Blocking:
    """Choose the split whose longest thread is estimated shortest, in cycles of a core with two vector FMAs a cycle.

    Raises
    ------
    Declined
        If not even one source row of a panel fits local memory.
    """
    depth = grid.taps * channels
    blocks_of = {}
    for b in _blockings(grid, tile, m_tiles, channels, size, keep, device.local_memory):
        blocks = -(-grid.pixels // (b.tiles * tile.columns))
        items = blocks * -(-m_tiles // b.row_tiles) * groups
        parts = -(-grid.source_rows * channels // b.part)
        pixel_tiles = min(b.tiles, -(-grid.pixels // tile.columns))
        panel = depth * pixel_tiles * tile.vectors * 4 + 300 * b.tiles
        weights = depth * tile.rows * size / (16 if m_tiles * tile.rows * depth * size > 2**19 else 48)
        tiles = pixel_tiles * (depth * tile.rows * tile.vectors / 2 + parts * 100)
        item = panel + b.row_tiles * (weights + tiles) + 2000
        blocks_of[-(-items // device.compute_units) * item * (1 + 0.3 / items), -items] = b
    if not blocks_of:
        raise Declined(f"a row of {grid.row_taps} taps does not fit {device.local_memory} bytes of local memory")
    return blocks_of[min(blocks_of)]


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan the packing of the weights and one launch per grid; the filter's gradient is `cpu_gemm_filter`'s."""
    if not context.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction == "backward_filter":
        return cpu_gemm_filter.plan(problem, context)
    if problem.direction == "forward":
        grids, source, target = [forward_grid(problem)], "x", "y"
        channels, rows = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    elif problem.direction == "backward_data":
        grids, source, target = backward_data_grids(problem), "dy", "dx"
        channels, rows = problem.out_channels // problem.groups, problem.in_channels // problem.groups
    else:
        raise Declined(f"has no {problem.direction}")
    tile = register_tile(context, problem.dtype)
    size = itemsize(problem.dtype)
    taps = int(np.prod(problem.kernel))
    m_tiles = -(-rows // tile.rows)
    pack_range = max(PACK_ELEMENTS // (taps * tile.rows), 1)
    # strides of w, (groups * out, in, taps), along the product's rows, its channels and the groups
    in_step, out_step = taps, taps * (problem.in_channels // problem.groups)
    steps = (out_step, in_step) if problem.direction == "forward" else (in_step, out_step)
    group_step = out_step * (problem.out_channels // problem.groups)

    launches, offset = [], 0
    for grid in grids:
        depth = grid.taps * channels
        packed = Workspace(offset, size)
        if depth:
            launches.append(
                Launch(
                    context.kernel("conv_cpu.cl", "pack_weights", tile.defines(), problem.dtype, OPTIONS),
                    (-(-channels // pack_range), m_tiles, problem.groups),
                    (1, 1, 1),
                    (
                        *(Buffer("w"), packed),
                        *ints(channels, rows),
                        *(Constant(np.int64(v)) for v in (*steps, group_step)),
                        *ints(pack_range, *in_3d(problem.kernel, 1)),
                        *grid.tap_constants(),
                    ),
                    (target,),
                )
            )
        launches.append(_product(problem, context, grid, tile, source, target, packed, channels, rows))
        offset += -(-problem.groups * m_tiles * tile.rows * depth * size // ALIGN) * ALIGN
    return Steps(tuple(launches), max(offset, ALIGN))


def _product(
    problem: ConvProblem,
    context: Context,
    grid: Grid,
    tile: Tile,
    source: str,
    target: str,
    packed: Workspace,
    channels: int,
    rows: int,
) -> Launch:
    m_tiles = -(-rows // tile.rows)
    keep = problem.dtype == "float16"  # sums are kept in arithmetic precision between the parts of a panel
    blocking = choose_blocking(
        grid, tile, m_tiles, channels, problem.groups, itemsize(problem.dtype), keep, context.device
    )
    bias = Buffer("b" if problem.bias else source)  # without a bias never read
    return Launch(
        context.kernel("conv_cpu.cl", "conv_gather", tile.defines(), problem.dtype, OPTIONS),
        (-(-grid.pixels // (blocking.tiles * tile.columns)), -(-m_tiles // blocking.row_tiles), problem.groups),
        (1, 1, 1),
        (
            *(Buffer(source), packed, bias, Buffer(target)),
            *ints(problem.bias),
            Accumulate(target),
            *ints(channels, rows),
            *grid.constants(),
            *grid.target_constants(),
            *ints(blocking.tiles, blocking.row_tiles, blocking.part),
            *map(Local, blocking.local_bytes),
        ),
        (target,),
    )
