"""Sizes for ``kernels/conv/gemm_gpu/stream.cl``, whose work-groups walk over tiles of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from clgraft.core.problem import ceil_div

LOCAL_MEMORY = 228 * 1024  # bytes of a compute unit with wgmma
RESERVED = 2048  # bytes of a work-group that are the driver's, or for alignment
MOST_STAGES, FEWEST_STAGES = 6, 3  # steps whose pixels are in local memory, the kernel's STAGES
MOST_DEPTH, MOST_WEIGHTS = 256, 2**16  # deeper or wider products wait for their weights, and other tiles are faster
PAD = 8  # elements after a row of pixels in local memory, the kernel's PAD


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
    def images(self) -> int: ...

    @property
    def busy_whole(self) -> int: ...


@dataclass(frozen=True)
class Stream:
    """The work-groups of a product, and the steps whose pixels and weights are in the local memory of each."""

    work_groups: int
    stages: int
    held: int

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        return {"STAGES": self.stages, "HELD_STEPS": self.held}


def stages(tile: Tile, depth: int) -> int:
    """Return the steps whose pixels have room in local memory next to the weights of a depth."""
    room = LOCAL_MEMORY // tile.busy_whole - RESERVED - depth * tile.m * tile.images * tile.bytes
    return min(MOST_STAGES, room // (tile.k * (tile.n + PAD) * tile.bytes))


def streams(tile: Tile, rows: int, depth: int) -> bool:
    """Return whether a tile serves products of one tap with so many rows and such a depth."""
    few = 0 < depth <= MOST_DEPTH and rows * depth <= MOST_WEIGHTS
    return few and depth % tile.k == 0 and stages(tile, depth) >= FEWEST_STAGES


def stream_of(tile: Tile, rows: int, columns: int, depth: int, groups: int, compute_units: int) -> Stream:
    """Return the sizes for `groups` products of (rows, depth) by (depth, columns)."""
    lines = ceil_div(rows, tile.m) * groups
    columns = ceil_div(columns, tile.n)
    work_groups = lines * max(1, min(columns, compute_units * tile.busy_whole // lines))
    return Stream(work_groups, stages(tile, depth), depth // tile.k)
