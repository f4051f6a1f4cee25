"""Products of matrices whose operands are pairs of bfloat16, see kernels/common/operands.cl: where planners take them."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner

NUMBERS = 2  # of an operand
BFLOAT16_PAIRS = "bfloat16_pairs"  # of a device's matrix units


def expect_pairs(dtype: str, planner: Planner) -> None:
    """Decline all but bfloat16 on CPU devices that add products of pairs.

    Raises
    ------
    Declined
    """
    if not planner.device.is_cpu or not planner.device.has_pair_products:
        raise Declined("made for CPU devices that add products of pairs of bfloat16")
    if dtype != "bfloat16":
        raise Declined("is for bfloat16")


def pair_defines(device: DeviceInfo) -> dict[str, int | str]:
    """Return the kernels' macros."""
    return {"PAIRED": 1, "EMULATED": int(BFLOAT16_PAIRS not in device.matrix_units)}
