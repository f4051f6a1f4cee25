"""AMD's driver for GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.runtime.toolchains.base import Probe, Toolchain
from clgraft.core.runtime.toolchains.halves import halves_probes

# beginnings of devices' names, which are those of instruction sets -> units for operands of 16 bits
UNITS = (
    (r"gfx11", "wmma"),
    (r"gfx(908|90a|94\d|950)", "mfma"),
    (r"gfx(906|101[12]|103)", "dot2"),
)


def units_of(name: str) -> tuple[str, ...]:
    """Return the units of a device with this name."""
    return tuple(units for pattern, units in UNITS if re.match(pattern, name))


class AMD(Toolchain):
    """AMD's driver, which has not been measured: its compiler is clang, with its builtin functions and prefetches."""

    WORDS: ClassVar[tuple[str, ...]] = ("amd",)
    HAS_PREFETCH: ClassVar[bool] = True

    def capabilities(self) -> dict[str, Any]:
        """Return what planners may rely on."""
        return {**super().capabilities(), "matrix_units": units_of(self.cl_device.name)}

    def probes(self, device: DeviceInfo) -> Iterator[Probe]:
        """Return what is to be found out: whether kernels with the builtin functions for the device's units work."""
        yield from halves_probes(device, *device.matrix_units)
