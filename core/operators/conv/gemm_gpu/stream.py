"""The form of the product for kernels of one tap with few weights (``kernels/conv/gemm_gpu/stream.cl``).

Its work-groups walk over tiles of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clgraft.core.operators.conv.gemm_gpu.constants import UNITS_PAD
from clgraft.core.operators.conv.gemm_gpu.tile import ProductShape, Tile
from clgraft.core.operators.conv.gemm_gpu.wgmma import Wgmma
from clgraft.core.problem import ceil_div

LOCAL_MEMORY = 228 * 1024  # bytes of a compute unit with wgmma
RESERVED = 2048  # bytes of a work-group that are the driver's, or for alignment
MOST_STAGES, FEWEST_STAGES = 6, 3  # steps whose pixels are in local memory, the kernel's STAGES
MOST_DEPTH, MOST_WEIGHTS = 256, 2**16  # deeper or wider products wait for their weights, and other tiles are faster


class Streaming(Wgmma):
    """Work-groups keep their rows of weights in local memory and walk over tiles of pixels; nothing is packed."""

    name = "gpu_gemm_stream"
    words = ("wgmma", "stream")
    file, kernel = "stream.cl", "conv_gemm_stream"
    splits = False

    def serves(self, tile: Tile, product: ProductShape) -> bool:
        few = 0 < product.depth <= MOST_DEPTH and product.rows * product.depth <= MOST_WEIGHTS
        whole = few and product.one_tap and product.depth % tile.k == 0
        return whole and stages(tile, product.depth) >= FEWEST_STAGES

    def unhidden(self, busy: int) -> float:
        return 1


STREAM = Streaming()


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
    weights = depth * tile.m * tile.parts_of_element * tile.bytes
    room = LOCAL_MEMORY // tile.busy_whole - RESERVED - weights
    return min(MOST_STAGES, room // (tile.k * (tile.n + UNITS_PAD) * tile.bytes))


def stream_of(tile: Tile, product: ProductShape, compute_units: int) -> Stream:
    """Return the sizes for a product."""
    lines = ceil_div(product.rows, tile.m) * product.groups
    columns = ceil_div(product.columns, tile.n)
    work_groups = lines * max(1, min(columns, compute_units * tile.busy_whole // lines))
    return Stream(work_groups, stages(tile, product.depth), product.depth // tile.k)
