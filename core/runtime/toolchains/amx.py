"""AMX, the matrix unit of Intel's processors: what asks the system for it, and finds out whether kernels can use it."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np

from clgraft.core.planning.amx import COLUMNS, LANES, ROWS, STEPS, UNIT, amx_defines
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.runtime.toolchains.base import Probe, cpu_flags
from clgraft.core.runtime.toolchains.pairs import operands, rounded

# of Linux, for x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, the number of the tiles' data), for all threads
ARCH_PRCTL, REQUEST, TILES = 158, 0x1023, 18
DEPTH = 2 * STEPS  # of the check: two blocks of steps


@cache
def has_amx(vector_width: int) -> bool:
    """Return whether the processor has the unit for bfloat16, and the system lets this process use it."""
    if vector_width != LANES or not {"amx_tile", "amx_bf16"} <= cpu_flags():
        return False
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return int(ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST, TILES)) == 0


def amx_probes(device: DeviceInfo) -> Iterator[Probe]:
    """Return what finds out whether kernels for the unit work; sums of small whole numbers are exact."""
    if UNIT not in device.matrix_units:
        return
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((ROWS, DEPTH, 2), (DEPTH, COLUMNS, 2)))
    blocks = np.ascontiguousarray(a.reshape(ROWS, 2, STEPS, 2).swapaxes(0, 1))
    yield Probe(
        field="has_amx",
        what="products of tiles of bfloat16",
        file="common/check_amx.cl",
        kernel="check_amx",
        defines={"VL": LANES, "DEPTH": DEPTH, **amx_defines(device)},
        items=1,
        inputs=(operands(blocks), operands(b)),
        expected=rounded(2 * np.einsum("rkp,klp->rl", a, b)),
        dtype="bfloat16",
        in_child=True,
        later=True,
    )
