"""Products of tiles of bfloat16 by AMX, see kernels/common/amx.cl: what planners and toolchains share."""

from __future__ import annotations

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import pair_defines

UNIT = "bfloat16_tiles_assembly"  # of a device's matrix units
ROWS, LANES, STEPS = 32, 16, 16  # of a product; a step is a pair of numbers
EMULATED, BY_ASSEMBLY = 1, 2  # the kernels' AMX


def amx_defines(device: DeviceInfo) -> dict[str, int]:
    """Return the kernels' macros: without the unit, its roundings are computed otherwise."""
    by_unit = UNIT in device.matrix_units
    return {**(pair_defines(device) if by_unit else {"PAIRED": 1}), "AMX": BY_ASSEMBLY if by_unit else EMULATED}
