"""What planners tell the compiler about kernels, and what they count: vector lanes, registers, work-items per core."""

from __future__ import annotations

from clgraft.core.planning.device import DeviceInfo

MAD_ENABLE = ("-cl-mad-enable",)  # compiler options: a product and a sum may be rounded once
ITEMS_PER_UNIT = 4  # work-items that each core of a CPU gets at least, so that none waits long for the last one


def arithmetic_bytes(dtype: str) -> int:
    """Return the bytes of an element in arithmetic; the small ones are formats of memory only."""
    return 8 if dtype == "float64" else 4


def vector_lanes(device: DeviceInfo, dtype: str) -> int:
    """Return the lanes of a CPU device's vectors in the arithmetic of a dtype, at least 4."""
    return max(device.vector_width * 4 // arithmetic_bytes(dtype), 4)


def has_32_registers(device: DeviceInfo) -> bool:
    """Return whether a CPU device has 32 vector registers (AVX-512) instead of 16."""
    return device.vector_width >= 16
