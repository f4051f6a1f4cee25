"""How Winograd's convolutions, forward and backward data, are split into work-items on CPU devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.operators.conv.winograd.tiles import (
    COSTS,
    OWN_WEIGHTS_BYTES,
    Geometry,
    transform_cost,
    weights_cost,
)
from clgraft.core.planning.tickets import turns
from clgraft.core.problem import ceil_div

SLICE_BYTES = 768 * 1024  # part of the L2 cache that a slice may fill
# bytes of a slice that a search tries
SLICES = (384 * 1024, 768 * 1024, 1536 * 1024)
MOST_SLICE_BYTES = 16 * 2**20
MOST_ITEMS = 16  # of a core
SHARED_WEIGHTS = 4 * 2**20  # least bytes of transformed weights that the cores' caches do not share well
FAR_BYTES = costs("product")["far_bytes"]  # bytes of transformed weights that arrive in a cycle


class TileSplit(NamedTuple):
    """An item's tile rows, how many of them at a time, its blocks of outputs, and who transforms the weights."""

    rows: int
    block_rows: int
    blocks: int
    own_weights: bool

    def items(self, geometry: Geometry, blocks: int) -> int:
        """Return the number of items, which the cores share."""
        return ceil_div(geometry.rows, self.rows) * ceil_div(blocks, self.blocks)


def heuristic(geometry: Geometry, tile: RegisterTile, cores: int) -> TileSplit | None:
    """Return the cheapest split into tile rows and blocks of outputs; for few tiles, blocks with weights of their own.

    A work-item reads the transformed weights of its blocks. On many cores these are more than all that it computes
    with, if every core takes a few tile rows and all blocks; blocks of its own cost it a transform of their source.
    Kernels of one row or column have few weights, so for them both are estimated, if all tiles fit the L2 cache.

    Returns
    -------
    TileSplit or None
        None where that leaves cores idle: each stage is then a launch of its own.
    """
    blocks = ceil_div(geometry.outputs, tile.columns)
    nbytes = geometry.row_bytes(tile.columns)
    splits = []
    square = all(geometry.transformed)
    fits = geometry.keeps_weights(tile.columns) if square else geometry.rows * nbytes <= SLICE_BYTES
    if blocks >= cores and fits:
        splits.append(TileSplit(geometry.rows, geometry.rows, ceil_div(blocks, cores), True))
        if square:
            return splits[0]
    most_rows = max(SLICE_BYTES // nbytes, 1, 32 // geometry.tile_w)
    for row_items in range(min(MOST_ITEMS * cores, geometry.rows), 0, -1):
        rows = ceil_div(geometry.rows, row_items)
        block_rows = ceil_div(rows, ceil_div(rows, min(most_rows, rows)))
        for items in (cores, 2 * cores, 4 * cores):
            parts = min(blocks, ceil_div(items, row_items))
            splits.append(TileSplit(rows, block_rows, ceil_div(blocks, parts), False))
    split = min(splits, key=lambda one: cost(one, geometry, tile, cores))
    if split.items(geometry, blocks) * 4 < cores * 3:
        return None
    return split


def own_split(
    geometry: Geometry, tiles: Collection[RegisterTile], shared: TileSplit | None, cores: int
) -> tuple[RegisterTile, TileSplit] | None:
    """Return the cheapest split with weights of its own into parts of the rows, where cores are more than blocks.

    Several cores transform the same weights then. That costs less than weights that all cores write and then read from
    the others' caches, if they are many.

    Parameters
    ----------
    tiles : collection of RegisterTile
        Those to choose from; the first is the one of `shared`.
    shared : TileSplit or None
        What `heuristic` returns.

    Returns
    -------
    tuple of RegisterTile and TileSplit, or None
        None where shared weights cost less.
    """
    g, (first, *_) = geometry, tiles
    if shared is None or shared.own_weights or not all(g.transformed) or ceil_div(g.outputs, first.columns) >= cores:
        return None
    if g.channels * g.outputs * g.products * 4 < SHARED_WEIGHTS:
        return None
    of_filter = weights_cost(g, "shared_weight_element")
    most = cost(shared, g, first, cores) + g.channels * g.outputs * of_filter / cores
    options = ((tile, split) for tile in tiles for split in _own_splits(g, tile, cores))
    best = min(options, key=lambda option: own_cost(option[1], g, option[0], cores), default=None)
    return best if best and own_cost(best[1], g, best[0], cores) < most else None


def _own_splits(g: Geometry, tile: RegisterTile, cores: int) -> Iterator[TileSplit]:
    """Return splits whose items transform their weights once: all of an item's rows are in its slice."""
    blocks, nbytes = ceil_div(g.outputs, tile.columns), g.row_bytes(tile.columns)
    rows_of_items = {ceil_div(g.rows, items) for items in range(1, min(MOST_ITEMS * cores, g.rows) + 1)}
    for rows in sorted(rows_of_items):
        if rows * nbytes <= OWN_WEIGHTS_BYTES:
            for count in sorted({ceil_div(blocks, parts) for parts in range(1, blocks + 1)}):
                yield TileSplit(rows, rows, count, True)


def own_cost(split: TileSplit, geometry: Geometry, tile: RegisterTile, cores: int) -> float:
    """Estimate the cycles that a split takes whose items transform their own weights."""
    g, blocks = geometry, ceil_div(geometry.outputs, tile.columns)
    filters = g.channels * min(split.blocks * tile.columns, g.outputs)
    own = filters * weights_cost(g, "far_weight_element")
    return cost(split, g, tile, cores) + turns(split.items(g, blocks), cores) * own


def cost(split: TileSplit, geometry: Geometry, tile: RegisterTile, cores: int) -> float:
    """Estimate the cycles that a split takes, without the transform of the weights."""
    g, blocks = geometry, ceil_div(geometry.outputs, tile.columns)
    outputs = split.blocks * tile.columns
    weights = g.products * g.channels * outputs
    rounds = ceil_div(split.rows, split.block_rows)
    tiles = rounds * tile.padded(split.block_rows * g.tile_w)
    transforms = split.rows * g.tile_w * (g.channels * g.source_phases + outputs * g.target_phases) * transform_cost(g)
    reads = 0 if split.own_weights else rounds * weights * 4 / FAR_BYTES
    item = tiles * weights / COSTS["products"] + transforms + reads
    return turns(split.items(g, blocks), cores) * item


def settings_of(geometry: Geometry, tile: RegisterTile, cores: int) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: a launch for every stage (`spread`), and work-items that take all stages."""
    blocks = ceil_div(geometry.outputs, tile.columns)
    nbytes = geometry.row_bytes(tile.columns)
    if geometry.rows * nbytes <= MOST_SLICE_BYTES:
        yield {"tile": geometry.tile, "spread": 1}
    splits: dict[TileSplit, None] = {}
    for items in (cores, 2 * cores, 4 * cores):
        row_items = min(items, geometry.rows)
        rows = ceil_div(geometry.rows, row_items)
        for slice_bytes in SLICES:
            block_rows = ceil_div(rows, ceil_div(rows, min(max(slice_bytes // nbytes, 1), rows)))
            splits[TileSplit(rows, block_rows, ceil_div(blocks, min(blocks, ceil_div(cores, row_items))), False)] = None
    for parts in (1, cores, 2 * cores):
        if parts <= blocks:
            splits[TileSplit(geometry.rows, geometry.rows, ceil_div(blocks, parts), True)] = None
    for split in splits:
        if split.block_rows * nbytes <= MOST_SLICE_BYTES:
            yield {"tile": geometry.tile, **split._asdict(), "own_weights": int(split.own_weights)}


def given(chosen: Mapping[str, int], geometry: Geometry, tile: RegisterTile) -> TileSplit | None:
    """Return the split that settings ask for, None for a launch per stage.

    Raises
    ------
    Declined
        If they do not split this problem.
    """
    if dict(chosen) == {"spread": 1}:
        return None
    if set(chosen) != set(TileSplit._fields):
        raise Declined(f"got settings {dict(chosen)}, expected {TileSplit._fields} or spread=1")
    blocks = ceil_div(geometry.outputs, tile.columns)
    split = TileSplit(chosen["rows"], chosen["block_rows"], chosen["blocks"], bool(chosen["own_weights"]))
    good = 1 <= split.block_rows <= split.rows <= geometry.rows and 1 <= split.blocks <= blocks
    if not good or (split.own_weights and split.block_rows != split.rows):
        raise Declined(f"{split} does not split {geometry.rows} rows and {blocks} blocks")
    return split
