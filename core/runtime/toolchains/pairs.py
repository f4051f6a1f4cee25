"""Products of pairs of bfloat16 in one instruction of a processor: what finds out whether they work in kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import WAYS, pair_defines
from clgraft.core.runtime.toolchains.base import Probe, cpu_flags, cpu_vendor

LANES, DEPTH = 16, 8  # of the check: lanes of a vector, and how many are added


def has_pairs(vector_width: int) -> bool:
    """Return whether the processor has the instruction, and the compiler uses registers of its size."""
    return vector_width == LANES and "avx512_bf16" in cpu_flags()


def slow_pairs() -> bool:
    """Return whether the instruction has fewer products in a second than that for floats.

    AMD's processors begin both as often, and so have twice the products in pairs. Intel's take four times as long for
    `vdpbf16ps` as for a multiply-add of floats: half of the products (Xeon of the fifth generation, measured).
    """
    return cpu_vendor() == "GenuineIntel"


def rounded(sums: np.ndarray) -> np.ndarray:
    """Return the nearest numbers of bfloat16, the even one of two, without the package that knows them."""
    bits = sums.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def operands(numbers: np.ndarray) -> np.ndarray:
    """Return pairs of floats that bfloat16 holds, in the last axis, as 32 bits each."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)[..., 0]


def pair_probes(device: DeviceInfo) -> Iterator[Probe]:
    """Return what finds out whether kernels for products of pairs work; sums of small whole numbers are exact.

    A compiler that does not know an intrinsic function may end the process.
    """
    if not set(WAYS).intersection(device.matrix_units):
        return
    numbers = np.random.default_rng(0).integers(-9, 10, (2, DEPTH, LANES, 2)).astype(np.float32)
    yield Probe(
        field="has_pair_products",
        what="products of pairs of bfloat16",
        file="common/check_pairs.cl",
        kernel="check_pairs",
        defines={"VL": LANES, **pair_defines(device)},
        items=1,
        inputs=tuple(map(operands, numbers)),
        expected=rounded((numbers[0] * numbers[1]).sum((0, 2))),
        dtype="bfloat16",
        in_child=True,
        later=True,
    )
