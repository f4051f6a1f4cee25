"""Products of tiles of bfloat16 by AMX, see kernels/common/amx.cl: what planners and toolchains share."""

from __future__ import annotations

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import EMULATED, pair_defines

UNIT = "bfloat16_tiles_assembly"  # of a device's matrix units
ROWS, COLUMNS, STEPS = 32, 32, 16  # of a product; a step is a pair of numbers
LANES = 16  # of a vector
BY_ASSEMBLY = 2  # the kernels' AMX, or EMULATED


def amx_defines(device: DeviceInfo) -> dict[str, int]:
    """Return the kernels' macros: without the unit, its roundings are computed otherwise."""
    if UNIT not in device.matrix_units:
        return {"PAIRED": EMULATED, "AMX": EMULATED}
    return {**pair_defines(device), "AMX": BY_ASSEMBLY}
