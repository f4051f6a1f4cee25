"""What the runtime asks of a driver and its compiler, with the answers of a driver of which nothing special is known.

A toolchain knows how kernels are prepared for a driver's compiler, how programs are built and where they are kept, and
what planners may rely on. Each driver has a file in this folder; `core/runtime/toolchains/__init__.py` lists them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Callable, ClassVar

import numpy as np

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tensor_map import TensorMap
from clgraft.core.runtime import sources

# what a device's vendor calls itself -> device class of a GPU
GPU_CLASSES = (("nvidia", "nvidia"), ("advanced micro", "amd"), ("amd", "amd"), ("intel", "intel-gpu"), ("arm", "mali"))
FINE_GRAIN_SYSTEM = 1 << 2  # of OpenCL's capabilities of shared virtual memory
LAST = 9  # rank of a driver for CPUs of which nothing is known

problems: list[str] = []  # drivers that could not be used, and why


@dataclass(frozen=True)
class Children:
    """How child processes build a driver's kernels, for drivers that compile one program at a time in a process.

    Attributes
    ----------
    launches : bool
        Whether a child launches each kernel once, because the driver compiles at the first launch and keeps the result
        in a cache of its own; otherwise it builds programs into our program cache.
    seconds_of_a_child, seconds_of_a_kernel : float
        What a child spends before its first kernel and this process alone would not spend, and what a kernel takes.
        They decide whether children pay.
    memory : int
        Bytes of the device that a child may take for having opened it.
    largest_grid : int
        Work-items along an axis above which a child does not launch a kernel.
    environment : mapping
        Variables of a child.
    """

    launches: bool
    seconds_of_a_child: float
    seconds_of_a_kernel: float
    memory: int = 0
    largest_grid: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverCache:
    """A driver's own cache of compiled kernels.

    Attributes
    ----------
    key, name : str
        What it is called in JSON, and in texts for users.
    choose : callable
        Chooses its folder before the driver does.
    folder : callable
        Returns the folder.
    is_own : callable
        Returns whether the folder lies below clgraft's, so that it may be cleared.
    programs : callable
        Returns the programs in a folder.
    clear : callable
        Removes all programs, and returns how many they were, and their bytes.
    """

    key: str
    name: str
    choose: Callable[[], None]
    folder: Callable[[], Path]
    is_own: Callable[[], bool]
    programs: Callable[[Path], Collection[Any]]
    clear: Callable[[], tuple[int, int]]


@dataclass(frozen=True)
class Probe:
    """A kernel that finds out whether something works on a device: it has to compute what is expected, exactly.

    Attributes
    ----------
    field : str
        Of `DeviceInfo`, which says whether it works.
    what : str
        What does not work where the results are wrong; no two probes of a device have the same.
    file, kernel : str
        The kernel; its arguments are the constants, the inputs and the result.
    defines : mapping
    items : int
        Work-items, which are one work-group.
    inputs : tuple of numpy.ndarray
    expected : numpy.ndarray
    dtype : str
        That the kernel is built for.
    in_child : bool
        Whether it is tried in a child process first, because the compiler may end a process.
    later : bool
        Whether it is tried when `field` is first read, because only problems of `dtype` do so.
    adds : tuple of str
        What `field` gets more of where it works, if it is a tuple of words.
    needs, instead_of : str
        Words of that tuple without which and with which it need not be found out.
    constants : tuple of StructConstant
    """

    field: str
    what: str
    file: str
    kernel: str
    defines: Mapping[str, Any]
    items: int
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    dtype: str = "float32"
    in_child: bool = False
    later: bool = False
    adds: tuple[str, ...] = ()
    needs: str = ""
    instead_of: str = ""
    constants: tuple[StructConstant, ...] = ()

    def is_needless(self, device: DeviceInfo) -> bool:
        """Return whether what a device is known to have makes it unnecessary."""
        known = getattr(device, self.field) if self.adds else ()
        return self.instead_of in known or (bool(self.needs) and self.needs not in known)

    def noted(self, device: DeviceInfo, works: bool) -> DeviceInfo:
        """Return what is known of a device once it has been tried."""
        found: Any = works if not self.adds else getattr(device, self.field) + (self.adds if works else ())
        return replace(device, **{self.field: found})


@cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features as Linux calls them; none elsewhere."""
    return frozenset(_words_of_cpu("flags", "Features"))


@cache
def cpu_vendor() -> str:
    """Return the processor's vendor as it calls itself, such as GenuineIntel; nothing elsewhere than on Linux."""
    return " ".join(_words_of_cpu("vendor_id"))


def _words_of_cpu(*beginnings: str) -> list[str]:
    """Return the words of the first line about the processor that begins so."""
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":", 1)[1].split() for line in file if line.startswith(beginnings)), [])
    except OSError:
        return []


class Toolchain:
    """A driver and its compiler, for one device.

    Parameters
    ----------
    cl_device : pyopencl.Device
    """

    # words in lower case, of which one is in the name of the driver's platform
    WORDS: ClassVar[tuple[str, ...]] = ()
    # rank among drivers for CPUs: the first is the default
    CPU_RANK: ClassVar[int] = LAST
    # variables with which the driver keeps each of its threads on a core of its own
    PINNING: ClassVar[Mapping[str, str]] = {}
    # beginnings of the names of variables that change what the compiler makes of a source, and names that do not
    STEERING: ClassVar[tuple[str, ...]] = ()
    STEERING_NOTHING: ClassVar[tuple[str, ...]] = ()
    # variables that hold a number of threads
    THREADS: ClassVar[tuple[str, ...]] = ()
    # whether the compiler translates __builtin_prefetch: some abort the process there
    HAS_PREFETCH: ClassVar[bool] = False
    # seconds that a launch takes apart from its work, and what each compute unit adds
    LAUNCH: ClassVar[tuple[float, float]] = (0.0, 3e-6)
    CHILDREN: ClassVar[Children | None] = None
    CACHE: ClassVar[DriverCache | None] = None

    def __init__(self, cl_device: Any) -> None:
        import pyopencl as cl

        self.cl_device = cl_device
        self.is_cpu = bool(cl_device.type & cl.device_type.CPU)
        # where the device has no fused multiply-add, drivers compute it by whole numbers, a hundred times slower
        self.fuses = bool(cl_device.single_fp_config & cl.device_fp_config.FMA)

    @classmethod
    def serves(cls, platform: str, version: str) -> bool:
        """Return whether it is the toolchain of a platform with this name in lower case and this version."""
        return any(word in platform for word in cls.WORDS)

    @classmethod
    def prepare(cls) -> None:
        """Do what the driver needs before OpenCL is first used. It may be done twice."""

    @classmethod
    def vendors_folder(cls) -> Path | None:
        """Return a folder that lists the installed drivers and one that no loader would find; None if there is none."""
        return None

    @property
    def word(self) -> str:
        """What rows of measured choices call the driver, and users may."""
        first, *_ = self.cl_device.platform.name.lower().split() or [""]
        return re.sub(r"[^a-z0-9]", "", first.split("(")[0]) or "other"

    def capabilities(self) -> dict[str, Any]:
        """Return what planners may rely on: attributes of `DeviceInfo`."""
        launch, each = self.LAUNCH
        return {
            "toolchain": self.word,
            "device_class": self._device_class(),
            "vector_width": self._vector_width(),
            "host_access": self._host_access(),
            "launch_seconds": launch,
            "launch_seconds_of_a_unit": each,
        }

    def probes(self, device: DeviceInfo) -> Iterator[Probe]:
        """Return what is to be found out on the device, each only if those before work; `device` is what is known."""
        return iter(())

    @property
    def children(self) -> Children | None:
        """How child processes build programs for this device; None where threads are as good."""
        return self.CHILDREN

    def _device_class(self) -> str:
        vendor = f"{self.cl_device.vendor} {self.cl_device.platform.vendor}".lower()
        return "cpu" if self.is_cpu else next((name for word, name in GPU_CLASSES if word in vendor), "gpu")

    def _vector_width(self) -> int:
        native = int(self.cl_device.native_vector_width_float or 1)
        if not self.is_cpu:
            return native
        if not cpu_flags() & {"avx512f", "avx"}:
            return max(4, min(16, native))
        return self._compiled_width(16 if "avx512f" in cpu_flags() else 8, native)

    def _compiled_width(self, widest: int, native: int) -> int:
        """Return the lanes that the compiler uses, of the processor's widest and of those that the device reports."""
        return widest

    def _host_access(self) -> str:
        try:
            shared = int(self.cl_device.svm_capabilities) & FINE_GRAIN_SYSTEM
        except Exception:  # a driver before OpenCL 2 does not know the question
            shared = 0
        if shared:
            return "raw_pointer"
        return "use_host_ptr" if self.cl_device.host_unified_memory else "staged"

    def kernel_text(self, file: str, name: str, macros: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the source of a kernel with its macros in front, and the options of the compiler that go with it.

        Parameters
        ----------
        file, name : str
            The file, relative to the kernels folder, and the kernel in it; the file's other kernels are left out.
        macros : mapping
            They have STORAGE.
        """
        if not self.HAS_PREFETCH:
            macros = {**macros, "__builtin_prefetch(...)": "((void)0)"}
        if not self.fuses:
            macros = {**macros, "UNFUSED": 1}
        front = "".join(f"#define {key} {value}\n" for key, value in macros.items())
        named = sources.functions(file).intersection(sources.WORD.findall(front))
        return self._arranged(file, name, named, macros, front)

    def _arranged(
        self, file: str, name: str, named: frozenset[str], macros: Mapping[str, Any], front: str
    ) -> tuple[str, tuple[str, ...]]:
        """Return a kernel's source and options; `front` are the lines of its macros, which name functions."""
        return front + sources.kernel_source(file, name, named), ()

    def tensor_map(self, matrix: TensorMap) -> StructConstant:
        """Return a map of a matrix, for kernels that compute what a copy engine does."""
        return matrix.as_numbers()

    def build(self, cl_context: Any, source: str, options: tuple[str, ...], built: Callable[..., Any]) -> Any:
        """Return a built program.

        Parameters
        ----------
        cl_context : pyopencl.Context
        source : str
        options : tuple of str
        built : callable
            Builds a pyopencl.Program with options, and returns it.
        """
        import pyopencl as cl

        return built(cl.Program(cl_context, source), options)

    def probing(self, probe: str) -> contextlib.AbstractContextManager[None]:
        """Return what encloses a probe, whose kernel is built and run.

        Parameters
        ----------
        probe : str
            Tells it from other probes.
        """
        return contextlib.nullcontext()

    def keeps_programs(self) -> bool:
        """Return whether the driver keeps what it compiles in a cache of its own, so that a second copy is a loss."""
        return False

    def cache_folder(self) -> Path | None:
        """Return the folder of the driver's own cache; None without."""
        return self.CACHE.folder() if self.CACHE else None

    def enter_cache(self) -> None:
        """Say that this process uses the driver's own cache from now on."""

    def expect_room(self, programs: int) -> None:
        """Check that the driver has room to build so many programs.

        Raises
        ------
        BuildError
            If it has not.
        """

    def repair_cache(self) -> None:
        """Remove damaged files of the driver's own cache, after a process that used it has died."""
