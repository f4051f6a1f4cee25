"""How Winograd's convolutions, forward and backward data, are split into work-items on CPU devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.grid import Tile
from clgraft.core.operators.conv.winograd.tiles import Geometry

SLICE_BYTES = 768 * 1024  # of the L2 cache
OWN_WEIGHTS_BYTES = 5 * 2**20  # of a core's part of the L3 cache
# what is searched: bytes of a slice
SLICES = (384 * 1024, 768 * 1024, 1536 * 1024)
MOST_SLICE_BYTES = 16 * 2**20


class Split(NamedTuple):
    """A work-item's tile rows, how many of them at a time, its blocks of outputs, and who transforms the weights."""

    rows: int
    block_rows: int
    blocks: int
    own_weights: bool

    def items(self, geometry: Geometry, blocks: int) -> tuple[int, int]:
        """Give the number of work-items along tile rows and along blocks of outputs."""
        return -(-geometry.rows // self.rows), -(-blocks // self.blocks)


def row_bytes(geometry: Geometry, tile: Tile) -> int:
    """Give the bytes of a tile row in a slice: its source, and its products of one block."""
    return geometry.elements * 4 * (geometry.padded_channels + tile.columns) * geometry.tile_w


def heuristic(geometry: Geometry, tile: Tile, cores: int) -> Split | None:
    """Give every core tile rows of its own; where all tiles are few, blocks of outputs and their weights instead.

    Returns
    -------
    Split or None
        None where that leaves cores idle: each step is then split by itself.
    """
    blocks = -(-geometry.outputs // tile.columns)
    nbytes = row_bytes(geometry, tile)
    if blocks >= cores and geometry.rows * nbytes <= OWN_WEIGHTS_BYTES:
        return Split(geometry.rows, geometry.rows, -(-blocks // cores), True)
    row_items = min(cores, geometry.rows)
    rows = -(-geometry.rows // row_items)
    most_rows = max(SLICE_BYTES // nbytes, 1, 32 // geometry.tile_w)
    block_rows = -(-rows // -(-rows // min(most_rows, rows)))
    split = Split(rows, block_rows, -(-blocks // min(blocks, -(-cores // row_items))), False)
    busy = split.items(geometry, blocks)
    if busy[0] * busy[1] * 4 < cores * 3:
        return None
    return split


def settings_of(geometry: Geometry, tile: Tile, cores: int) -> Iterator[Mapping[str, int | str]]:
    """Give the settings to search: every step by itself (`spread`), and work-items that take all steps."""
    blocks = -(-geometry.outputs // tile.columns)
    nbytes = row_bytes(geometry, tile)
    if geometry.rows * nbytes <= MOST_SLICE_BYTES:
        yield {"tile": geometry.tile, "spread": 1}
    splits: dict[Split, None] = {}
    for items in (cores, 2 * cores, 4 * cores):
        row_items = min(items, geometry.rows)
        rows = -(-geometry.rows // row_items)
        for slice_bytes in SLICES:
            block_rows = -(-rows // -(-rows // min(max(slice_bytes // nbytes, 1), rows)))
            splits[Split(rows, block_rows, -(-blocks // min(blocks, -(-cores // row_items))), False)] = None
    for parts in (1, cores, 2 * cores):
        if parts <= blocks:
            splits[Split(geometry.rows, geometry.rows, -(-blocks // parts), True)] = None
    for split in splits:
        if split.block_rows * nbytes <= MOST_SLICE_BYTES:
            yield {"tile": geometry.tile, **split._asdict(), "own_weights": int(split.own_weights)}


def given(chosen: Mapping[str, int], geometry: Geometry, tile: Tile) -> Split | None:
    """Give the split that settings ask for, None for each step by itself.

    Raises
    ------
    Declined
        If they do not split this problem.
    """
    if dict(chosen) == {"spread": 1}:
        return None
    if set(chosen) != set(Split._fields):
        raise Declined(f"got settings {dict(chosen)}, expected {Split._fields} or spread=1")
    blocks = -(-geometry.outputs // tile.columns)
    split = Split(chosen["rows"], chosen["block_rows"], chosen["blocks"], bool(chosen["own_weights"]))
    good = 1 <= split.block_rows <= split.rows <= geometry.rows and 1 <= split.blocks <= blocks
    if not good or (split.own_weights and split.block_rows != geometry.rows):
        raise Declined(f"{split} does not split {geometry.rows} rows and {blocks} blocks")
    return split
