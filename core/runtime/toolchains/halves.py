"""Products of operands of 16 bits on matrix units of GPUs: what finds out whether they work in kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.halves import name_of, work_items
from clgraft.core.problem import SMALL
from clgraft.core.runtime.toolchains.base import Probe

ROWS, COLUMNS, DEPTH = 64, 128, 64  # of the product that is checked
# a part of it, of the work-items that multiply together: rows and columns
PARTS = {
    "wgmma": (64, 0),
    "mma": (32, 64),
    "dpas16": (32, 32),
    "dpas8": (16, 32),
    "wmma": (32, 32),
    "mfma": (32, 64),
    "dot2": (8, 8),
}
TYPES = {"dot2": ("float16",)}  # of units that have not all


def halves_probe(
    device: DeviceInfo, units: str, dtype: str = "float16", adds: tuple[str, ...] = (), instead_of: str = ""
) -> Probe:
    """Return what finds out whether kernels work whose operands are of 16 bits.

    Small whole numbers are exact in both types.

    Parameters
    ----------
    device : DeviceInfo
    units : str
        A kind of matrix units.
    dtype : str
    adds : tuple of str
        What `DeviceInfo.halves` gets where it works; without any, `units` with the type.
    instead_of : str
        What makes it unnecessary.
    """
    numbers = [np.random.default_rng(0).integers(-9, 10, shape) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS))]
    rows, columns = PARTS[units]
    parts = {"WARP_M": rows, "WARP_N": columns} if columns else {}
    items = work_items(units, ROWS, COLUMNS, rows, columns)
    defines: dict[str, Any] = {
        **{"EMULATED": int(units not in device.matrix_units), "MICRO": f"{units.upper()}_UNITS"},
        **{"TILE_M": ROWS, "TILE_N": COLUMNS, "THREADS": items},
    }
    return Probe(
        field="halves",
        what=f"{units} on {dtype}",
        file="conv/gemm_gpu/check_halves.cl",
        kernel="check_halves",
        defines={**defines, **parts},
        items=items,
        inputs=tuple(stored(each, dtype) for each in numbers),
        expected=(numbers[0] @ numbers[1]).astype(np.float32),
        dtype=dtype,
        adds=adds or (name_of(units, dtype),),
        instead_of=instead_of,
    )


def stored(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return small whole numbers as kernels read them."""
    if dtype == "float16":
        return numbers.astype(np.float16)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def halves_probes(device: DeviceInfo, *kinds: str) -> Iterator[Probe]:
    """Return what finds out which of several kinds of units a device has, for each type: the first kind that works."""
    first = kinds[0] if kinds else ""
    for units in kinds:
        for dtype in TYPES.get(units, SMALL):
            yield halves_probe(device, units, dtype, instead_of="" if units == first else name_of(first, "float16"))
