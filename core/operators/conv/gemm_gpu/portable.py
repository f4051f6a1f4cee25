"""The form of the product for every device (``kernels/conv/gemm_gpu/portable.cl``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.operators.conv.gemm_gpu.constants import FMA_PAD
from clgraft.core.operators.conv.gemm_gpu.tile import Form, Tile

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo


class Portable(Form):
    """Multiply-adds of float32 or float64 in plain OpenCL C."""

    name = "gpu_gemm"
    file, kernel = "portable.cl", "conv_gemm"

    def runs_on(self, device: DeviceInfo, operands: str) -> bool:
        return True

    def local_bytes(self, tile: Tile) -> int:
        return 2 * tile.k * (tile.m + tile.n + 2 * FMA_PAD) * tile.bytes + tile.n * 16


PORTABLE = Portable()
