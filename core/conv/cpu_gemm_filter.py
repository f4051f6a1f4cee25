"""Convolution on CPU devices, backward filter: a product of matrices whose summed axis is the pixels of all images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from clgraft.core.conv.cpu_gemm_grid import Grid, Tile, forward_grid, ints, itemsize
from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Launch, Local, Steps, Workspace

if TYPE_CHECKING:
    from clgraft.core.context import Context

OPTIONS = ("-cl-mad-enable",)
BLOCKS = (192, 64)  # most pixels of a panel; the second where local memory is scarce
LOCAL_BYTES = 640 * 1024
RUN_INTS = 7
SUM_RANGE = 64  # rows of a work-item that adds the splits


def register_tile(context: Context, dtype: str, out_channels: int) -> Tile:
    """Give the tile that wastes least on the out channels."""
    lanes = max(context.device.vector_width, 4)
    wide = lanes >= 16
    if dtype == "float64":
        lanes //= 2
    rows = {3: 8, 2: 12, 1: 16} if wide else {3: 4, 2: 6, 1: 12}
    vectors = min((3, 2, 1), key=lambda v: (-(-out_channels // (v * lanes)) * v, v == 3, -v))
    return Tile(rows[vectors], vectors, lanes)


@dataclass(frozen=True)
class Split:
    """How the work is split: blocks of pixels a split, source rows and out channel tiles an item; rows of a panel."""

    pitch: int
    block: int
    blocks: int
    splits: int
    rows: int
    tiles: int
    part: int
    panel_bytes: int
    gradient_bytes: int
    piece_bytes: int
    run_bytes: int


def _splits(
    grid: Grid, tile: Tile, channels: int, out_tiles: int, size: int, local_memory: int, most_pixels: int
) -> Iterator[Split]:
    source_rows = grid.source_rows * channels
    count = -(-grid.pixels // most_pixels)
    block = -(-grid.pixels // count)
    runs, elements = grid.run_counts(block, block)
    pieces = (elements + (runs + 1) * (grid.phases + 1) * tile.lanes) * size
    pitch = most_pixels + tile.lanes
    for tiles in sorted({-(-out_tiles // n) for n in range(1, out_tiles + 1)}):
        gradient = tiles * (block + tile.lanes) * tile.columns * size
        rest = gradient + pieces + runs * RUN_INTS * 4 + 4 * 128
        panel_rows = (min(LOCAL_BYTES, local_memory) - rest) // (pitch * size) - tile.rows
        most = panel_rows // grid.row_taps
        if most < 1:
            continue
        for rows in sorted({-(-source_rows // n) for n in range(1, min(source_rows, 256) + 1)}):
            part = -(-rows // -(-rows // most))
            while part < min(rows, most) and part * grid.row_taps % tile.rows:
                part += 1
            panel = (part * grid.row_taps + tile.rows) * pitch * size
            for blocks in sorted({-(-count // n) for n in range(1, min(count, 256) + 1)}):
                splits = -(-count // blocks)
                yield Split(
                    pitch, block, blocks, splits, rows, tiles, part, panel, gradient, pieces, runs * RUN_INTS * 4
                )


def choose_split(grid: Grid, tile: Tile, channels: int, out_tiles: int, groups: int, size: int, device: Any) -> Split:
    """Choose the split whose longest thread is estimated shortest, in cycles of a core with two vector FMAs a cycle.

    Raises
    ------
    Declined
        If not even one source row of a panel fits local memory.
    """
    source_rows, taps = grid.source_rows * channels, grid.row_taps
    best: tuple[float, Split] | None = None
    for s in chain.from_iterable(
        _splits(grid, tile, channels, out_tiles, size, device.local_memory, most) for most in BLOCKS
    ):
        row_items, out_items = -(-source_rows // s.rows), -(-out_tiles // s.tiles)
        items = s.splits * row_items * out_items * groups
        tail = -(-s.part * taps // tile.rows) * tile.rows / (s.part * taps)
        tiles = s.rows * taps * tail / tile.rows * s.tiles
        vectors = tile.rows * tile.vectors
        of_block = (
            s.block / tile.lanes * (s.rows * taps * 4 + s.tiles * tile.columns * 8)
            + tiles * vectors * (s.block / 2 + 3)
            + 2000
        )
        item = of_block * s.blocks + 2000
        threads = device.compute_units
        sums = groups * source_rows * taps * out_tiles * tile.columns * (s.splits / 8 + 1.5) / threads
        cost = -(-items // threads) * item * (1 + 0.3 / items) + sums
        if best is None or cost < best[0]:
            best = cost, s
    if best is None:
        raise Declined(f"a row of {taps} taps does not fit {device.local_memory} bytes of local memory")
    return best[1]


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan the products over splits of the pixels, and their sum in a fixed order."""
    grid = forward_grid(problem)
    groups = problem.groups
    channels, out_count = problem.in_channels // groups, problem.out_channels // groups
    tile = register_tile(context, problem.dtype, out_count)
    size = itemsize(problem.dtype)
    out_tiles = -(-out_count // tile.columns)
    depth = grid.taps * channels
    defines: dict[str, int] = dict(tile.defines())
    partial = Workspace(0, size)
    launches, splits = [], 0
    if grid.pixels:
        s = choose_split(grid, tile, channels, out_tiles, groups, size, context.device)
        splits, defines["PITCH"] = s.splits, s.pitch
        launches.append(
            Launch(
                context.kernel("conv_cpu_filter.cl", "conv_filter", defines, problem.dtype, OPTIONS),
                (splits, -(-grid.source_rows * channels // s.rows), groups * -(-out_tiles // s.tiles)),
                (1, 1, 1),
                (
                    *(Buffer("x"), Buffer("dy"), partial),
                    *ints(channels, out_count, groups),
                    *grid.constants(),
                    *ints(s.block, s.blocks, s.rows, s.tiles, s.part),
                    *map(Local, (s.panel_bytes, s.gradient_bytes, s.piece_bytes, s.run_bytes)),
                ),
                ("dw",),
            )
        )
    launches.append(
        Launch(
            context.kernel("conv_cpu_filter.cl", "sum_partials", defines, problem.dtype, OPTIONS),
            (-(-depth // SUM_RANGE), out_tiles, groups),
            (1, 1, 1),
            (partial, Buffer("dw"), Accumulate("dw"), *ints(splits, groups, out_count, depth, SUM_RANGE)),
            ("dw",),
        )
    )
    return Steps(tuple(launches), max(splits, 1) * groups * out_tiles * tile.columns * depth * size)
