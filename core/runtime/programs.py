"""The programs of a device: built when a plan is handed over, all that it needs at once, and kept within a bound."""

from __future__ import annotations

import copy
import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from clgraft.core import abi
from clgraft.core.runtime import build_processes, building, folders, program_cache, toolchains
from clgraft.core.runtime.affinity import affinity_kept

MOST_PROGRAMS = 256  # that are kept although no plan may use them any more


def new_kernel(program: Any, name: str) -> Any:
    """Return a pyopencl kernel of a program, also where no cache can be written."""
    import pyopencl as cl

    if not folders.caches_can_grow():
        # pyopencl keeps lists of arguments in a database, and some versions of it wait for ever for room
        cl._PYOPENCL_NO_CACHE = True
    return cl.Kernel(program, name)


class PlannedKernel:
    """A kernel that a plan asks for; its program is built when the kernel is first used.

    Attributes
    ----------
    source : str
    options : tuple of str
    function_name : str
    key : bytes
        Of its program.
    """

    def __init__(self, programs: Programs, source: str, options: tuple[str, ...], function_name: str) -> None:
        self._programs = programs
        self.source, self.options, self.function_name = source, options, function_name
        self.key = hashlib.sha256("\0".join((*options, source)).encode()).digest()
        self._built: Any = None
        self._handle: Any = None

    def again(self) -> PlannedKernel:
        """Return another kernel of the same program, which gets arguments of its own."""
        other = copy.copy(self)
        other._built = other._handle = None
        return other

    @property
    def built(self) -> Any:
        """The pyopencl kernel, with arguments of its own.

        Raises
        ------
        BuildError
            With the compiler's log.
        """
        if self._built is None:
            self._built = self._programs.kernel(self)
        return self._built

    @property
    def program(self) -> Any:
        """The pyopencl program."""
        return self._programs.of(self)

    @property
    def int_ptr(self) -> int:
        """The address of the `cl_kernel`; a pyopencl kernel, which `built` makes, takes ten times as long to create."""
        if self._built is None and self._handle is None:
            self._handle = self._programs.handle(self)
        return int(self.built.int_ptr) if self._handle is None else int(abi.ffi.cast("uintptr_t", self._handle))


class Programs:
    """Programs of one device, by source and options. What was not asked for lately is forgotten.

    A forgotten program lives on in the kernels that were made from it.

    Parameters
    ----------
    cl_context, cl_device : pyopencl objects
    threads : int
        How many programs are compiled at the same time.
    """

    def __init__(self, cl_context: Any, cl_device: Any, threads: int = 1) -> None:
        self._cl_context, self._cl_device = cl_context, cl_device
        self._kept: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.RLock()
        self._threads = threads

    def __len__(self) -> int:
        return len(self._kept)

    def build(self, kernels: Iterable[PlannedKernel], kept: Collection[bytes] = ()) -> None:
        """Build the programs of several kernels that are not there yet.

        Parameters
        ----------
        kernels : iterable of PlannedKernel
        kept : collection of bytes
            Keys of programs that the driver has in its own cache: these are loaded, so nobody is told of them.

        Raises
        ------
        BuildError
            With the compiler's log, or if the driver has no room to build.
        """
        with self._lock, affinity_kept():
            missing = {kernel.key: kernel for kernel in kernels if kernel.key not in self._kept}
            if missing:
                toolchains.of(self._cl_device).expect_room(len(missing))
            missing = self._load(missing, kept)
            if missing and build_processes.build_programs(self._cl_device, missing.values()):
                missing = self._load(missing)
            if missing:
                self._compile(missing)
            while len(self._kept) > MOST_PROGRAMS:
                self._kept.popitem(last=False)

    def _load(self, missing: Mapping[bytes, PlannedKernel], kept: Collection[bytes] = ()) -> dict[bytes, PlannedKernel]:
        """Load the programs that are in a cache, and return the others' kernels."""

        def load(kernel: PlannedKernel) -> Any:
            return self._cached(program_cache.build if kernel.key in kept else program_cache.load, kernel)

        found = self._each(load, missing.values())
        self._kept.update((key, program) for key, program in zip(missing, found) if program is not None)
        return {key: kernel for key, kernel in missing.items() if key not in self._kept}

    def _compile(self, missing: Mapping[bytes, PlannedKernel]) -> None:
        with building.told(self._cl_device.name.strip(), len(missing)) as step:

            def compiled(kernel: PlannedKernel) -> Any:
                step(kernel.function_name)
                return self._cached(program_cache.build, kernel)

            self._kept.update(zip(missing, self._each(compiled, missing.values())))

    def _cached(self, function: Callable[..., Any], kernel: PlannedKernel) -> Any:
        return function(self._cl_context, self._cl_device, kernel.source, kernel.options)

    def _each(self, make: Callable[[PlannedKernel], Any], kernels: Collection[PlannedKernel]) -> list[Any]:
        """Return what a function makes of each kernel, several at a time."""
        threads = min(self._threads, len(kernels))
        if threads <= 1:
            return [make(kernel) for kernel in kernels]
        # Threads change the filters of warnings and restore them in any order: they have to agree outside.
        with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
            warnings.simplefilter("ignore")
            return list(pool.map(make, kernels))

    def of(self, kernel: PlannedKernel) -> Any:
        """Return a kernel's program."""
        with self._lock:
            if kernel.key not in self._kept:
                self.build([kernel])
            self._kept.move_to_end(kernel.key)
            return self._kept[kernel.key]

    def handle(self, planned: PlannedKernel) -> Any:
        """Return a new `cl_kernel` for a plan; None if the driver refuses it."""
        with affinity_kept():
            program = abi.ffi.cast("void *", self.of(planned).int_ptr)
            made = abi.lib.clg_kernel_create(program, planned.function_name.encode())
        return abi.ffi.gc(made, abi.lib.clg_kernel_release) if made else None

    def kernel(self, planned: PlannedKernel) -> Any:
        """Return a new pyopencl kernel."""
        with affinity_kept():
            return new_kernel(self.of(planned), planned.function_name)
