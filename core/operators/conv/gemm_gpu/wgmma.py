"""The form of the product for matrix units with ``wgmma`` (``kernels/conv/gemm_gpu/wgmma.cl``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.operators.conv.gemm_gpu.constants import MOST_STAGES, UNITS_PAD
from clgraft.core.operators.conv.gemm_gpu.mma import SHORTEST_DEPTH
from clgraft.core.operators.conv.gemm_gpu.tile import Form, ProductShape, Tile
from clgraft.core.planning.precision import TF32

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

SUMMED_DEPTH = 2**13  # most products of TF32 that the matrix units, which round towards zero, add up


class Wgmma(Form):
    """``wgmma.mma_async`` on TF32 operands: three products for float32, one for operands that are rounded."""

    name = "gpu_gemm_wgmma"
    words: tuple[str, ...] = ("wgmma",)
    file, kernel = "wgmma.cl", "conv_gemm_wgmma"
    needs = "matrix units with wgmma"
    packs_tiles = True

    def runs_on(self, device: DeviceInfo, operands: str) -> bool:
        return device.has_wgmma

    def defines(self, device: DeviceInfo) -> dict[str, int]:
        return {"EMULATED": int("wgmma" not in device.matrix_units)}

    def serves(self, tile: Tile, product: ProductShape) -> bool:
        return product.depth >= SHORTEST_DEPTH

    def local_bytes(self, tile: Tile) -> int:
        # A in one part or two, on a boundary
        numbers = self.parts_of_element(tile.operands) * tile.m + tile.n + UNITS_PAD
        return MOST_STAGES * tile.k * numbers * tile.bytes + tile.n * 16 + 1024

    def local_memory(self, device: DeviceInfo) -> int:
        return device.largest_local_memory

    def parts_of_element(self, operands: str) -> int:
        return 1 if operands == TF32 else 2


WGMMA = Wgmma()


def promotion(tile: Tile, chunks: int) -> dict[str, int]:
    """Return the macro that leaves sums of so many of the tile's depths to the matrix units, where they are TF32's."""
    whole = isinstance(tile.form, Wgmma) and tile.operands == TF32 and chunks * tile.k <= SUMMED_DEPTH
    return {"PROMOTE": 0} if whole else {}
