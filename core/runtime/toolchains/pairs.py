"""Products of pairs of bfloat16 in one instruction of a processor: what finds out whether they work in kernels."""

from __future__ import annotations

import numpy as np

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import BFLOAT16_PAIRS, pair_defines
from clgraft.core.runtime.toolchains.base import Probe

PAIR_LANES, DEPTH = 16, 8  # of the check: lanes of a vector, and how many are added

__all__ = ["BFLOAT16_PAIRS", "PAIR_LANES", "pair_probe"]


def pair_probe(device: DeviceInfo) -> Probe:
    """Return what finds out whether kernels for products of pairs work; sums of small whole numbers are exact."""
    numbers = np.random.default_rng(0).integers(-9, 10, (2, DEPTH, PAIR_LANES, 2)).astype(np.float32)
    stored = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return Probe(
        field="has_pair_products",
        what="products of pairs of bfloat16",
        file="common/check_pairs.cl",
        kernel="check_pairs",
        defines={"VL": PAIR_LANES, **pair_defines(device)},
        items=1,
        inputs=tuple(np.ascontiguousarray(part).view(np.uint32).reshape(DEPTH, PAIR_LANES) for part in stored),
        expected=(numbers[0] * numbers[1]).sum((0, 2)),
    )
