"""How the products of matrices on CPU devices are split into work-groups and cache-sized panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clgraft.core.conv.cpu_gemm_grid import Grid, Tile
from clgraft.core.errors import Declined

PANEL_BYTES = 448 * 1024  # about half of a core's L2 cache
RUN_INTS = 7  # the kernels' RUN_FIELDS
PACK_CYCLES = 5  # to fill one vector of a panel


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
) -> tuple[float, Blocking]:
    """Choose the split whose longest thread is estimated shortest; give that estimate, too.

    The estimate is in cycles of a core with two vector FMAs a cycle.

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
        panel = depth * pixel_tiles * tile.vectors * PACK_CYCLES + 300 * b.tiles
        weights = depth * tile.rows * size / (16 if m_tiles * tile.rows * depth * size > 2**19 else 48)
        tiles = pixel_tiles * (depth * tile.rows * tile.vectors / 2 + parts * 100)
        item = panel + b.row_tiles * (weights + tiles) + 2000
        blocks_of[-(-items // device.compute_units) * item * (1 + 0.3 / items), -items] = b
    if not blocks_of:
        raise Declined(f"a row of {grid.row_taps} taps does not fit {device.local_memory} bytes of local memory")
    best = min(blocks_of)
    return best[0], blocks_of[best]
