"""Matrices whose boxes a device's copy engine brings to local memory: ``kernels/conv/gemm_gpu/micro/bulk.cl``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clgraft.core.planning.structs import StructConstant

BOX_COLUMNS = 64  # elements of 16 bits: the width of the swizzle


@dataclass(frozen=True)
class TensorMap:
    """A matrix of 16 bits by rows, and its boxes; where it begins is the kernel's to know.

    Attributes
    ----------
    columns, rows : int
        There are zeros beyond them.
    pitch : int
        Elements from row to row, a multiple of eight.
    box_rows : int
        Rows of a box of `BOX_COLUMNS`.
    """

    columns: int
    rows: int
    pitch: int
    box_rows: int

    def as_numbers(self) -> StructConstant:
        """Return the map as kernels take it that compute what the engine does."""
        return StructConstant(np.array([self.columns, self.rows, self.pitch, self.box_rows], np.int64).tobytes())
