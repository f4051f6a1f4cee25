"""Matrix units whose operands are of 16 bits: their names, and how many work-items multiply together."""

from __future__ import annotations

WGMMA = "wgmma"
WARPGROUP = 128  # work-items that multiply together with wgmma
# the other units, in order of preference -> work-items that multiply together: kernels/conv/gemm_gpu/micro/
LANES = {"mma": 32, "dpas16": 16, "dpas8": 8, "wmma": 32, "mfma": 64, "dot2": 1}


def work_items(units: str, rows: int, columns: int, warp_rows: int, warp_columns: int) -> int:
    """Return how many work-items make a tile of rows and columns, of which those that multiply together have a part.

    With ``wgmma`` the part is rows alone.
    """
    if units == WGMMA:
        return rows * WARPGROUP // warp_rows
    return rows // warp_rows * (columns // warp_columns) * LANES[units]


def name_of(units: str, dtype: str) -> str:
    """Return what `DeviceInfo.halves` has where units work for a type."""
    return f"{units}-{dtype}"
