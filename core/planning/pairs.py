"""Products whose operands are pairs of bfloat16, see kernels/common/operands.cl: where planners take them."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner

NUMBERS = 2  # of an operand
# of a device's matrix units: how its compiler is asked for the instruction -> the kernels' PAIRED; EMULATED without it
ASSEMBLY, INTRINSIC = "bfloat16_pairs_assembly", "bfloat16_pairs_intrinsic"
WAYS = {ASSEMBLY: 2, INTRINSIC: 3}
EMULATED = 1


def expect_pairs(dtype: str, planner: Planner) -> None:
    """Decline all but bfloat16 on CPU devices that add products of pairs faster than those of floats.

    Raises
    ------
    Declined
    """
    if dtype != "bfloat16":  # first: only then devices find out whether they have these products
        raise Declined("is for bfloat16")
    if not planner.device.is_cpu or not planner.device.has_pair_products:
        raise Declined("made for CPU devices that add products of pairs of bfloat16")
    if planner.device.has_slow_pairs:
        raise Declined("made for processors whose products of pairs of bfloat16 are faster than those of floats")


def flush_defines(dtype: str, device: DeviceInfo) -> dict[str, int]:
    """Return the macros of kernels that multiply bfloat16 one by one: they round as those that multiply pairs."""
    return pair_defines(device) if dtype == "bfloat16" and device.has_pair_products else {}


def product_defines(dtype: str, device: DeviceInfo) -> dict[str, int]:
    """Return the macros of kernels that multiply pairs of bfloat16 where that is faster; nothing where it is not."""
    return {} if device.has_slow_pairs else flush_defines(dtype, device)


def pair_defines(device: DeviceInfo) -> dict[str, int]:
    """Return the kernels' macros."""
    return {"PAIRED": next((WAYS[unit] for unit in device.matrix_units if unit in WAYS), EMULATED)}
