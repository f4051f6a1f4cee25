"""PoCL on CPUs, of any version; what one version needs is in a folder of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable, ClassVar

from clgraft.core.planning.amx import UNIT
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.pairs import ASSEMBLY
from clgraft.core.runtime.toolchains import pocl_cache
from clgraft.core.runtime.toolchains.amx import amx_probes, has_amx
from clgraft.core.runtime.toolchains.base import Children, DriverCache, Probe, Toolchain
from clgraft.core.runtime.toolchains.pairs import has_pairs, pair_probes, slow_pairs

WORD = "pocl"
NO_WARNINGS = "-w"
FEW_CORES = 4  # on which a wait that keeps its core awake was measured: see docs/development/notes.md


class PoCL(Toolchain):
    """PoCL, whose kernels run in the caller's address space, on threads that all wake up for a launch.

    It compiles a kernel for the work-groups that it is launched with, one at a time in a process, and keeps it in a
    cache of its own. To be asked for a program's binary makes it compile every kernel once more, for work-groups of any
    size; so our program cache leaves its programs to it.

    The costs of children were measured with PoCL 3.1. They follow from `python benchmarks/first_minute.py net
    resnet50_v1` with and without them. Kernels for grids of more than 65535 items along an axis are compiled once more.
    """

    WORDS: ClassVar[tuple[str, ...]] = ("portable computing language",)
    CPU_RANK: ClassVar[int] = 1
    PINNING: ClassVar[Mapping[str, str]] = {"POCL_AFFINITY": "1"}
    STEERING: ClassVar[tuple[str, ...]] = ("POCL_",)
    STEERING_NOTHING: ClassVar[tuple[str, ...]] = ("POCL_AFFINITY", "POCL_CACHE_DIR")
    THREADS: ClassVar[tuple[str, ...]] = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")
    HAS_PREFETCH: ClassVar[bool] = True
    LAUNCH: ClassVar[tuple[float, float]] = (15e-6, 5.5e-6)
    CHILDREN: ClassVar[Children | None] = Children(
        launches=True,
        seconds_of_a_child=0.6,
        seconds_of_a_kernel=0.25,
        largest_grid=65535,
        environment={"POCL_AFFINITY": "0"},  # pinned threads would all share the first core
    )
    CACHE: ClassVar[DriverCache | None] = DriverCache(
        key=WORD,
        name="PoCL",
        choose=pocl_cache.choose_folder,
        folder=pocl_cache.folder,
        is_own=pocl_cache.is_own,
        programs=pocl_cache.programs,
        clear=pocl_cache.clear,
    )

    @classmethod
    def prepare(cls) -> None:
        """Choose the folder of its cache."""
        pocl_cache.choose_folder()

    @property
    def word(self) -> str:
        """What rows of measured choices call it, and users."""
        return WORD

    def capabilities(self) -> dict[str, Any]:
        """Return what planners may rely on."""
        known = super().capabilities()
        pairs = self.is_cpu and has_pairs(known["vector_width"])
        units = (ASSEMBLY,) * pairs + (UNIT,) * (self.is_cpu and has_amx(known["vector_width"]))
        awake = self.is_cpu and int(self.cl_device.max_compute_units) <= FEW_CORES
        slow = pairs and slow_pairs()
        return {**known, "stays_awake": awake, "matrix_units": units, "has_slow_pairs": slow}

    def probes(self, device: DeviceInfo) -> Iterator[Probe]:
        """Return what is to be found out: whether the assembly of products of bfloat16, pairs and tiles, works."""
        yield from pair_probes(device)
        yield from amx_probes(device)

    def _compiled_width(self, widest: int, native: int) -> int:
        """Return the lanes that the compiler uses, which may leave the widest registers alone: the device says so."""
        return max(4, min(widest, native))

    def _host_access(self) -> str:
        """Return `raw_pointer` for CPUs, although the driver does not offer it by name."""
        return "raw_pointer" if self.is_cpu else super()._host_access()

    def kernel_text(self, file: str, name: str, macros: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return a kernel's source and options: without warnings, which the compiler counts on the process's stderr.

        Version 3.1 may take the address of a vector of halves for aligned, so that they are read as whole numbers.
        """
        if macros["STORAGE"] == 16:
            macros = {**macros, "HALVES_BY_BITS": 1}
        text, options = super().kernel_text(file, name, macros)
        return text, (*options, NO_WARNINGS)

    def build(self, cl_context: Any, source: str, options: tuple[str, ...], built: Callable[..., Any]) -> Any:
        """Return a built program, which no other process builds at the same time."""
        with pocl_cache.alone(source):
            return super().build(cl_context, source, options, built)

    def probing(self, probe: str) -> contextlib.AbstractContextManager[None]:
        """Return what lets no other process find out the same at the same time: it would build the same kernel."""
        pocl_cache.enter()
        return pocl_cache.alone(probe, pocl_cache.PROBING)

    def keeps_programs(self) -> bool:
        """Return whether its cache keeps programs."""
        return pocl_cache.keeps_programs()

    def enter_cache(self) -> None:
        """Hold a file in the cache, and check what a process that has died left there."""
        pocl_cache.enter()

    def expect_room(self, programs: int) -> None:
        """Check that the cache has room."""
        pocl_cache.enter()
        pocl_cache.expect_room(programs)

    def repair_cache(self) -> None:
        """Remove the files that are cut: what has ended another process would end this one."""
        pocl_cache.repair()
