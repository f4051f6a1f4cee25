"""The form of the product for matrix units with ``mma`` (``kernels/conv/gemm_gpu/mma.cl``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.operators.conv.gemm_gpu.constants import UNITS_PAD
from clgraft.core.operators.conv.gemm_gpu.tile import Form, ProductShape, Tile
from clgraft.core.planning.precision import TF32

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

SHORTEST_DEPTH = 32  # depth from which rounding of operands that are split in two is hidden in that of the sums


class Mma(Form):
    """``mma.sync`` on TF32 operands: three products for float32, one for operands that are rounded."""

    name = "gpu_gemm_mma"
    words = ("mma",)
    file, kernel = "mma.cl", "conv_gemm_mma"
    needs = "matrix units with mma, in float32 where they are the faster ones"

    def runs_on(self, device: DeviceInfo, operands: str) -> bool:
        return "mma" in device.matrix_units if operands == TF32 else device.splits_float32

    def defines(self, device: DeviceInfo) -> dict[str, int]:
        return {"EMULATED": int("mma" not in device.matrix_units)}

    def serves(self, tile: Tile, product: ProductShape) -> bool:
        return product.depth >= SHORTEST_DEPTH

    def local_bytes(self, tile: Tile) -> int:
        return 2 * tile.k * (tile.m + tile.n + 2 * UNITS_PAD) * tile.bytes + tile.n * 16


MMA = Mma()
