"""Sizes for ``kernels/conv/gemm_gpu/stream.cl``, whose work-groups walk over tiles of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clgraft.core.operators.conv.gemm_gpu.halo import LOCAL_MEMORY, RESERVED
from clgraft.core.problem import ceil_div

if TYPE_CHECKING:
    from clgraft.core.operators.conv.gemm_gpu.tiles import GroupTile, ProductShape

MOST_STAGES, FEWEST_STAGES = 6, 3  # steps in local memory, the kernel's STAGES
PAD = 4  # elements after a row of pixels in local memory, the kernel's PAD


@dataclass(frozen=True)
class Stream:
    """The work-groups of a product, and what is in their local memory.

    `held` are the steps whose weights stay there, 0 where they pass it with the pixels.
    """

    work_groups: int
    stages: int
    held: int

    def defines(self) -> dict[str, Any]:
        """Return the kernel's macros."""
        return {"STAGES": self.stages, "HELD_STEPS": self.held}


def stage_bytes(tile: GroupTile) -> tuple[int, int]:
    """Return the bytes of a step's pixels and of its weights in local memory."""
    return tile.k * (tile.n + PAD) * tile.bytes, tile.k * tile.m * tile.images * tile.bytes


def stream_of(tile: GroupTile, product: ProductShape, parts: int, steps: int, compute_units: int) -> Stream:
    """Return the sizes for a product whose parts have so many steps."""
    lines = ceil_div(product.rows, tile.m) * parts * product.groups
    columns = ceil_div(product.columns, tile.n)
    work_groups = lines * max(1, min(columns, compute_units * tile.busy_whole // lines))
    pixels, weights = stage_bytes(tile)
    room = LOCAL_MEMORY // tile.busy_whole - RESERVED
    if steps * weights + FEWEST_STAGES * pixels <= room:
        return Stream(work_groups, min(MOST_STAGES, (room - steps * weights) // pixels), steps)
    return Stream(work_groups, min(MOST_STAGES, room // (pixels + weights)), 0)
