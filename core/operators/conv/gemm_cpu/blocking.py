"""How the products of matrices on CPU devices are split into work-groups and cache-sized panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.grid import Grid
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import ceil_div

PANEL_BYTES = 448 * 1024  # about half of a core's L2 cache
COSTS = costs("product")
RUN_INTS = 6  # the kernels' RUN_FIELDS
# panels of products in place are smaller: while one is multiplied, the next one's source comes into the same cache
PLAIN_BYTES = 320 * 1024
RANGES = 8  # most ranges of pixels for each core


@dataclass(frozen=True)
class Blocking:
    """How a grid is split: tiles of pixels and row tiles of a panel's products, source rows of a panel; local memory.

    A work-group has one block of pixels, or `ranges` of them have all where every pixel meets only its own element.
    """

    tiles: int
    row_tiles: int
    part: int
    local_bytes: tuple[int, ...]
    ranges: int = 0


def _ranges(tiles: int, row_blocks: int, block_tiles: int, units: int) -> tuple[int, float]:
    """Return in how many ranges to split the tiles of pixels, and the tiles of the busiest thread.

    A range's first block was not asked for ahead: it counts as a quarter more. Few ranges cannot make up
    for a core that others use, too.
    """
    found = []
    for n in range(1, min(max(tiles, 1), RANGES * units) + 1):
        turns = ceil_div(n * row_blocks, units)
        longest = turns * (ceil_div(tiles, n) + block_tiles * COSTS["first_block"])
        found.append((longest * (1 + COSTS["uneven_range"] / (n * row_blocks)), n, longest))
    _, ranges, longest = min(found)
    return ranges, longest


@dataclass(frozen=True)
class Work:
    """One grid's product, as far as its blocking depends on it: row tiles, channels, groups, bytes of an element.

    `keep` says whether sums are kept in arithmetic precision between the parts of a panel; `late`, whether something
    follows the last part, so that they are kept where there are several.
    """

    grid: Grid
    m_tiles: int
    channels: int
    groups: int
    size: int
    keep: bool = False
    late: bool = False

    @property
    def depth(self) -> int:
        """Rows of the whole panel."""
        return self.grid.taps * self.channels

    @property
    def steps(self) -> int:
        """Steps of the products of a row tile and a tile of pixels."""
        return self.depth

    @property
    def sums(self) -> int:
        """Register tiles of sums of a row tile and a tile of pixels."""
        return 1

    @property
    def rows(self) -> int:
        """What parts of a panel are counted in."""
        return self.grid.source_rows * self.channels

    @property
    def row_taps(self) -> int:
        """Rows of the panel for each of them."""
        return max(self.grid.row_taps, 1)

    @property
    def part_cost(self) -> float:
        """Cycles to load and store a register tile of sums for each part."""
        return COSTS["part"]

    @property
    def far_bytes(self) -> float:
        """Bytes of weights that arrive in a cycle from beyond the L2 cache."""
        return COSTS["far_bytes"]

    @property
    def shift(self) -> int:
        """Pixels of a tile that only its neighbours store."""
        return 0

    def row_size(self, tile: RegisterTile) -> int:
        """Elements of a tile of the panel for each of `rows`."""
        return self.row_taps * tile.columns

    def scratch(self, tile: RegisterTile) -> int:
        """Elements of local memory besides the panel."""
        return tile.rows * tile.columns


def _blockings(work: Work, tile: RegisterTile, local_memory: int, panel_bytes: int) -> Iterator[Blocking]:
    size, m_tiles = work.size, work.m_tiles
    row_size = work.row_size(tile)
    for tiles in range(1, 9):
        run_bytes = work.grid.most_runs(tiles * tile.columns + work.shift) * RUN_INTS * 4
        scratch = work.scratch(tile) * size
        for row_tiles in sorted({ceil_div(m_tiles, n) for n in range(1, m_tiles + 1)}):
            sums = row_tiles * tiles * work.sums * tile.rows * tile.columns * size
            for kept in (sums,) if work.keep else (size, sums) if work.late else (size,):
                rest = scratch + run_bytes + kept + 4 * 128
                part = (min(panel_bytes, local_memory - rest) // (tiles * size) - tile.lanes) // row_size
                parts = max(ceil_div(work.rows, max(part, 1)), 1)
                if parts == 1:
                    break
            if part < 1 and work.rows:
                continue
            part = max(ceil_div(work.rows, parts), 1)
            panel = tiles * (part * row_size + tile.lanes) * size
            yield Blocking(tiles, row_tiles, part, (panel, scratch, run_bytes, kept))


def blockings(work: Work, tile: RegisterTile, device: DeviceInfo, panel_bytes: int = 0) -> list[tuple[float, Blocking]]:
    """Return the splits that fit local memory, the one whose longest thread is estimated shortest first.

    The estimate is in cycles of a core with two vector FMAs a cycle.
    """
    grid, m_tiles = work.grid, work.m_tiles
    found: list[tuple[float, int, int, Blocking]] = []
    panel_bytes = panel_bytes or (PLAIN_BYTES if grid.plain else PANEL_BYTES)
    for b in _blockings(work, tile, device.local_memory, panel_bytes):
        blocks = ceil_div(grid.pixels, b.tiles * tile.columns)
        items = blocks * ceil_div(m_tiles, b.row_tiles) * work.groups
        parts = ceil_div(work.rows, b.part)
        pixel_tiles = min(b.tiles, ceil_div(grid.pixels, tile.columns))
        panel = work.row_size(tile) * work.rows / tile.lanes * pixel_tiles * COSTS["fill"] + COSTS["tile"] * b.tiles
        row_bytes = work.steps * tile.rows * work.size
        weights = row_bytes / (work.far_bytes if m_tiles * row_bytes > COSTS["near_size"] else COSTS["near_bytes"])
        products = work.steps * tile.rows * tile.vectors / COSTS["fmas"]
        tiles = pixel_tiles * (products + parts * work.sums * work.part_cost)
        if grid.plain:  # a thread takes its blocks one after the other
            row_blocks = ceil_div(m_tiles, b.row_tiles) * work.groups
            all_tiles = ceil_div(grid.pixels, tile.columns)
            ranges, longest = _ranges(all_tiles, row_blocks, b.tiles, device.compute_units)
            cost = (
                longest / max(pixel_tiles, 1) * (panel * COSTS["visible_fill"] + b.row_tiles * (weights + tiles))
                + COSTS["item"]
            )
            found.append((cost, -items, len(found), replace(b, ranges=ranges)))
            continue
        item = panel + b.row_tiles * (weights + tiles) + COSTS["item"]
        found.append(
            (ceil_div(items, device.compute_units) * item * (1 + COSTS["uneven"] / items), -items, len(found), b)
        )
    # among equal costs the last one comes first
    return [(cost, b) for cost, _, _, b in sorted(found, key=lambda entry: (entry[0], entry[1], -entry[2]))]


def choose_blocking(work: Work, tile: RegisterTile, device: DeviceInfo) -> tuple[float, Blocking]:
    """Choose the split whose longest thread is estimated shortest; return that estimate, too.

    Raises
    ------
    Declined
        If not even one source row of a panel fits local memory.
    """
    listed = blockings(work, tile, device)
    if not listed:
        raise Declined(f"a row of {work.row_taps} taps does not fit {device.local_memory} bytes of local memory")
    return listed[0]
