"""Sizes for ``kernels/conv/gemm_gpu/filters.cl``, whose work-groups copy rows of dy and x some steps ahead."""

from __future__ import annotations

from typing import Protocol

from clgraft.core.operators.conv.gemm_gpu.halo import LOCAL_MEMORY, RESERVED
from clgraft.core.problem import ceil_div

MOST_STAGES, FEWEST_STAGES = 6, 3  # steps in local memory, the kernel's STAGES


class Tile(Protocol):
    """What the sizes follow from: a `GroupTile` of ``tiles.py``."""

    @property
    def m(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def busy_vectors(self) -> int: ...


def step_bytes(tile: Tile) -> int:
    """Return the local memory of a step."""
    return (tile.m + tile.n) * tile.k * tile.bytes


def stages(tile: Tile) -> int:
    """Return the steps that have room in local memory."""
    return min(MOST_STAGES, (LOCAL_MEMORY // tile.busy_vectors - RESERVED) // step_bytes(tile))


def turned(tile: Tile, rows: int, columns: int) -> bool:
    """Return whether x is the operand with `tile.m` rows: where that takes fewer tiles of a product's."""
    return _tiles(tile, columns, rows) < _tiles(tile, rows, columns)


def tiles(tile: Tile, rows: int, columns: int) -> int:
    """Return the number of tiles of a product."""
    return min(_tiles(tile, columns, rows), _tiles(tile, rows, columns))


def _tiles(tile: Tile, first: int, second: int) -> int:
    return ceil_div(first, tile.m) * ceil_div(second, tile.n)
