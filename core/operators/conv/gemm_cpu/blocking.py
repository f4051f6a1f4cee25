"""How the products of matrices on CPU devices are split into work-groups and cache-sized panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.grid import Grid
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.tickets import turns
from clgraft.core.problem import ceil_div

PANEL_BYTES = 448 * 1024  # about half of a core's L2 cache
COSTS = costs("product")
RUN_INTS = 6  # the kernels' RUN_FIELDS
# panels of products in place are smaller: while one is multiplied, the next one's source comes into the same cache
PLAIN_BYTES = 320 * 1024
# a core's L2 cache: lines a multiple of a power of two apart share the sets that it has for one of that many bytes
SETS_BYTES = 1024 * 1024
FAR_PLANE = 2048  # bytes of an image's plane from which on the next row of a panel is far from the last one
LEAST_STEPS = 192  # fewer in a part cost more than weights that leave that cache


@dataclass(frozen=True)
class Blocking:
    """How a grid is split: tiles of pixels and row tiles of a panel's products, its source rows; local memory."""

    tiles: int
    row_tiles: int
    part: int
    local_bytes: tuple[int, ...]


@dataclass(frozen=True)
class ProductWork:
    """One grid's product, as far as its blocking depends on it: row tiles, channels, groups, bytes of an element.

    `keep` says whether sums are kept in arithmetic precision between the parts of a panel; `late`, whether something
    follows the last part, so that they are kept where there are several; `spread`, whether a block's results are put
    together in local memory; `fmas`, how many vectors are multiplied and added in a cycle; `apart`, how many bytes the
    weights of two steps are apart where row tiles share their lines, 0 where all of a line are one row tile's.
    """

    grid: Grid
    m_tiles: int
    channels: int
    groups: int
    size: int
    keep: bool = False
    late: bool = False
    spread: bool = False
    fmas: float = COSTS["fmas"]
    apart: int = 0

    @cached_property
    def depth(self) -> int:
        """Rows of the whole panel."""
        return self.grid.taps * self.channels

    @property
    def steps(self) -> int:
        """Steps of the products of a row tile and a tile of pixels."""
        return self.depth

    @property
    def plane_bytes(self) -> int:
        """Bytes of a channel of an image."""
        return self.grid.pixels // max(self.grid.batch, 1) * self.size

    @property
    def sums(self) -> int:
        """Register tiles of sums of a row tile and a tile of pixels."""
        return 1

    @cached_property
    def rows(self) -> int:
        """What parts of a panel are counted in."""
        return self.grid.source_rows * self.channels

    @cached_property
    def row_taps(self) -> int:
        """Rows of the panel for each of them."""
        return max(self.grid.row_taps, 1)

    @property
    def most_rows(self) -> int:
        """Rows of a part whose lines of weights stay in the L2 cache until the next row tile reads the rest of them."""
        return max(SETS_BYTES // (self.apart & -self.apart), LEAST_STEPS) if self.apart else max(self.rows, 1)

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

    def scratch(self, tile: RegisterTile, tiles: int) -> int:
        """Elements of local memory besides the panel, of a block of so many tiles."""
        return tile.rows * tile.columns * tiles + tile.lanes if self.spread else tile.rows * tile.columns


def _blockings(work: ProductWork, tile: RegisterTile, local_memory: int, panel_bytes: int) -> Iterator[Blocking]:
    size, m_tiles = work.size, work.m_tiles
    row_size = work.row_size(tile)
    for tiles in range(1, 9):
        run_bytes = work.grid.most_runs(tiles * tile.columns + work.shift) * RUN_INTS * 4
        scratch = work.scratch(tile, tiles) * size
        for row_tiles in sorted({ceil_div(m_tiles, n) for n in range(1, m_tiles + 1)}):
            sums = row_tiles * tiles * work.sums * tile.rows * tile.columns * size
            for kept in (sums,) if work.keep else (size, sums) if work.late else (size,):
                rest = scratch + run_bytes + kept + 4 * 128
                part = (min(panel_bytes, local_memory - rest) // (tiles * size) - tile.lanes) // row_size
                part = min(part, work.most_rows)
                parts = max(ceil_div(work.rows, max(part, 1)), 1)
                if parts == 1:
                    break
            if part < 1 and work.rows:
                continue
            part = max(ceil_div(work.rows, parts), 1)
            panel = tiles * (part * row_size + tile.lanes) * size
            yield Blocking(tiles, row_tiles, part, (panel, scratch, run_bytes, kept))


def blockings(
    work: ProductWork, tile: RegisterTile, device: DeviceInfo, panel_bytes: int = 0
) -> list[tuple[float, Blocking]]:
    """Return the splits that fit local memory, the one whose longest thread is estimated shortest first.

    The estimate is in cycles of a core with two vector FMAs a cycle.
    """
    grid = work.grid
    found: list[tuple[float, int, int, Blocking]] = []
    panel_bytes = panel_bytes or (PLAIN_BYTES if grid.one_tap else PANEL_BYTES)
    for b in _blockings(work, tile, device.local_memory, panel_bytes):
        blocks = ceil_div(grid.pixels, b.tiles * tile.columns)
        items = blocks * ceil_div(work.m_tiles, b.row_tiles) * work.groups
        tiles = min(b.tiles, ceil_div(grid.pixels, tile.columns))
        item = _item_cycles(work, tile, b, tiles)
        last = min(_last_tiles(work, tile, b.tiles), tiles)
        share = _item_cycles(work, tile, b, last) / item if last < tiles else 1.0
        longest = turns(items, device.compute_units, max(blocks, 1), share) * item
        found.append((longest + COSTS["item"], -items, len(found), b))
    # among equal costs the last one comes first
    return [(cost, b) for cost, _, _, b in sorted(found, key=lambda entry: (entry[0], entry[1], -entry[2]))]


def _item_cycles(work: ProductWork, tile: RegisterTile, b: Blocking, tiles: float) -> float:
    """Estimate the cycles of an item of work with so many tiles of pixels."""
    parts = ceil_div(work.rows, b.part)
    in_place = work.grid.plain
    fill = COSTS["strided_fill" if work.grid.one_tap and not in_place else "fill"]
    visible = COSTS["visible_fill"] if in_place else 1
    panel = (work.row_size(tile) * work.rows / tile.lanes * tiles * fill + COSTS["tile"] * b.tiles) * visible
    if in_place and b.tiles * tile.columns * work.size < work.plane_bytes >= FAR_PLANE:
        panel += COSTS["row"] * work.rows
    row_bytes = work.steps * tile.rows * work.size
    weights = row_bytes / (work.far_bytes if work.m_tiles * row_bytes > COSTS["near_size"] else COSTS["near_bytes"])
    products = work.steps * tile.rows * tile.vectors / work.fmas
    return panel + b.row_tiles * (weights + tiles * (products + parts * work.sums * work.part_cost))


def _last_tiles(work: ProductWork, tile: RegisterTile, tiles: int) -> float:
    """Estimate in how many tiles' time the last block of pixels is multiplied, if its last tile has one vector of them.

    Products in place compute that vector alone. All other blocks count as whole.
    """
    whole, rest = divmod((work.grid.pixels - 1) % (tiles * tile.columns) + 1, tile.columns)
    if not work.grid.one_tap or not 0 < rest <= tile.lanes:
        return tiles
    return whole + min(COSTS["tail"] / tile.vectors, 1)


def choose_blocking(work: ProductWork, tile: RegisterTile, device: DeviceInfo) -> tuple[float, Blocking]:
    """Choose the split whose longest thread is estimated shortest; return that estimate, too.

    Raises
    ------
    Declined
        If not even one source row of a panel fits local memory.
    """
    found = _best(work, tile, device, tuple(COSTS.values()))
    if found is None:
        raise Declined(f"a row of {work.row_taps} taps does not fit {device.local_memory} bytes of local memory")
    return found


@lru_cache(maxsize=1024)
def _best(
    work: ProductWork, tile: RegisterTile, device: DeviceInfo, costs_used: tuple[float, ...]
) -> tuple[float, Blocking] | None:
    """Return the best split: a problem is planned several times, alone and with what follows it."""
    return next(iter(blockings(work, tile, device)), None)
