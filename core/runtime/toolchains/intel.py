"""Intel's drivers: how to find the CPU runtime that pip installs, and what the compilers for CPUs and GPUs do.

The runtime from pip registers itself nowhere a loader looks, and its libraries do not find each other. So they are
loaded here by name, and a folder of the user's cache lists it together with the installed drivers.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from clgraft.core.files import write_whole
from clgraft.core.log import warn_once
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import INTRINSIC
from clgraft.core.runtime.folders import cache_folder, refusal, until_the_end
from clgraft.core.runtime.toolchains.base import Children, Probe, Toolchain, problems
from clgraft.core.runtime.toolchains.halves import halves_probes
from clgraft.core.runtime.toolchains.pairs import has_pairs, pair_probes, slow_pairs

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
PACKAGE = "intel-opencl-rt"
DRIVER = "libintelocl.so"
# in the order in which they need each other
NEEDS = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so", "libtbb.so.12")
# what the runtime is told to compile for -> lanes of float32, where that is not AVX-512
TARGET = "CL_CONFIG_CPU_TARGET_ARCH"
TARGETS = {"core-avx2": 8, "corei7-avx": 8, "corei7": 4}
# that gives a thread of a GPU twice the usual registers, so that half as many threads run
REGISTERS = "-cl-intel-256-GRF-per-thread"
# of GPUs with matrix engines, and what these are called for both sizes of sub-groups
DPAS, SUB_GROUPS = "cl_intel_subgroup_matrix_multiply_accumulate", ("dpas8", "dpas16")


class Intel(Toolchain):
    """Intel's runtime. Its calls cost less than those of other drivers for CPUs: whole nets are faster.

    Its compiler for CPUs serves one thread of a process at a time: two take 0.92 of the time of one.
    """

    WORDS: ClassVar[tuple[str, ...]] = ("intel",)
    CPU_RANK: ClassVar[int] = 0
    PINNING: ClassVar[Mapping[str, str]] = {"DPCPP_CPU_CU_AFFINITY": "spread", "DPCPP_CPU_PLACES": "threads"}
    STEERING: ClassVar[tuple[str, ...]] = ("CL_CONFIG_", "IGC_")
    THREADS: ClassVar[tuple[str, ...]] = ("DPCPP_CPU_NUM_CUS",)
    HAS_PREFETCH: ClassVar[bool] = True
    CHILDREN: ClassVar[Children | None] = Children(launches=False, seconds_of_a_child=0.8, seconds_of_a_kernel=0.25)

    @property
    def children(self) -> Children | None:
        """How child processes build programs: the compiler for GPUs needs none."""
        return self.CHILDREN if self.is_cpu else None

    @classmethod
    def vendors_folder(cls) -> Path | None:
        """Return a folder that lists the installed drivers and the runtime from pip; None where there is no need."""
        driver = packaged_driver()
        return vendors_folder(driver) if driver else None

    def capabilities(self) -> dict[str, Any]:
        """Return what planners may rely on: the compiler for CPUs makes vectors of work-items.

        It refuses assembly, and knows the intrinsic functions of LLVM by their names. GPUs say by an extension that
        they have matrix engines, which sub-groups of the smallest size use.
        """
        known = super().capabilities()
        units: tuple[str, ...] = ()
        pairs = self.is_cpu and has_pairs(known["vector_width"])
        if pairs:
            units = (INTRINSIC,)
        elif not self.is_cpu and DPAS in self.cl_device.extensions.split():
            units = SUB_GROUPS
        slow = pairs and slow_pairs()
        return {**known, "vectorizes_items": self.is_cpu, "matrix_units": units, "has_slow_pairs": slow}

    def probes(self, device: DeviceInfo) -> Iterator[Probe]:
        """Return what is to be found out: whether the intrinsic function for pairs of bfloat16 works, or which units.

        A GPU has matrix engines for sub-groups of 8 or of 16. One for 8 compiles kernels for 16, too, whose results are
        undefined.
        """
        yield from pair_probes(device)
        if set(SUB_GROUPS) <= set(device.matrix_units):
            yield from halves_probes(device, *SUB_GROUPS)

    def kernel_text(self, file: str, name: str, macros: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the source of a kernel and its options.

        Kernels for matrix engines need all registers of a thread; those whose work-items are to stay single are not
        made of vectors of these.
        """
        if macros.get("SCALAR_ITEMS"):
            macros = {**macros, "ONE_BY_ONE": "__attribute__((intel_vec_len_hint(1)))"}
        text, options = super().kernel_text(file, name, macros)
        engines = not self.is_cpu and "WARP_M" in macros and not macros["EMULATED"]
        return text, (*options, REGISTERS) if engines else options

    def _compiled_width(self, widest: int, native: int) -> int:
        """Return the lanes that the compiler was told to use: the device does not say so."""
        return min(widest, TARGETS.get(os.environ.get(TARGET, ""), widest))


def packaged_driver() -> Path | None:
    """Return Intel's CPU driver where pip put it, its libraries loaded; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # with Python's modules for mail

    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == DRIVER]
    if not found:
        problems.append(f"{PACKAGE}: is installed, but holds no {DRIVER}")
        return None
    # the libraries lie next to the link that pip made, not next to what it points to
    folder = next(Path(str(file.locate())).parent.resolve() for file in files if file.name == DRIVER)
    try:
        for name in NEEDS:
            path = folder / name
            ctypes.CDLL(str(path) if path.exists() else name, mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / DRIVER))
    except OSError as error:
        problems.append(f"{PACKAGE}: {error}")
        return None
    return folder / DRIVER


def vendors_folder(driver: Path) -> Path | None:
    """Return a folder that lists the installed drivers and this one."""
    entries = {"clgraft-intel-cpu.icd": f"{driver}\n".encode()}
    if SYSTEM_VENDORS.is_dir():
        for icd in sorted(SYSTEM_VENDORS.glob("*.icd")):
            try:
                entries[icd.name] = icd.read_bytes()
            except OSError as error:
                problems.append(f"{icd}: {error}")
    if any(b"libintelocl" in text for name, text in entries.items() if not name.startswith("clgraft-")):
        return None  # it is installed on the system as well: one of them is enough
    key = hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:16]
    base = cache_folder()
    try:
        if base is not None:
            with contextlib.suppress(OSError):
                return _listed(base / f"vendors-{key}", entries)
            warn_once(f"[cache] {base} cannot be written: {PACKAGE} is listed in a temporary folder")
        return _listed(until_the_end("clgraft-vendors-"), entries)
    except OSError as error:
        problems.append(f"{PACKAGE}: {error}")
        return None


def _listed(folder: Path, entries: Mapping[str, bytes]) -> Path:
    """Return a folder of this user alone that holds these files; those that are missing are written."""
    folder.mkdir(mode=0o700, exist_ok=True)
    reason = refusal(folder)
    if reason:
        raise PermissionError(f"{folder} is not used: {reason}")
    for name, text in entries.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text:
            write_whole(path, text)
    return folder
