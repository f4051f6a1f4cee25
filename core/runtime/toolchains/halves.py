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
    "dpas16": (16, 32),
    "dpas8": (16, 16),
    "wmma": (32, 32),
    "mfma": (32, 64),
    "dot2": (8, 8),
}
TYPES = {"dot2": ("float16",)}  # of units that have not all


def halves_probe(device: DeviceInfo, units: str, dtype: str = "float16", **conditions: Any) -> Probe:
    """Return what finds out whether kernels work whose operands are of 16 bits.

    Small whole numbers are exact in both types.

    Parameters
    ----------
    device : DeviceInfo
    units : str
        A kind of matrix units.
    dtype : str
    **conditions
        `adds` (without it, `units` with the type), `needs` and `instead_of` of the probe.
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
        **{"adds": (name_of(units, dtype),), **conditions},
    )


def stored(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return small whole numbers as kernels read them."""
    if dtype == "float16":
        return numbers.astype(np.float16)
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def halves_probes(device: DeviceInfo, *kinds: str) -> Iterator[Probe]:
    """Return what finds out which of several kinds of units a device has, for each type: the first kind that works."""
    for units in kinds:
        own, first = name_of(units, SMALL[0]), name_of(kinds[0], SMALL[0])
        for dtype in TYPES.get(units, SMALL):
            needs = own if dtype != SMALL[0] else ""
            yield halves_probe(device, units, dtype, needs=needs, instead_of=first if units != kinds[0] else "")
