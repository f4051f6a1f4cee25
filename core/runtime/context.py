"""A device's OpenCL objects, its compiled kernels, and its handle in the C runtime."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clgraft.core import abi, settings
from clgraft.core.errors import ExecutionError, ProblemError
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.launches import Launches
from clgraft.core.problem import Argument, Problem
from clgraft.core.runtime import arrays, build_processes, devices, probes, toolchains
from clgraft.core.runtime.handover import label, plan_spec
from clgraft.core.runtime.programs import PlannedKernel, Programs

MOST_THREADS = 16  # compilations at the same time
LARGEST = 2**47  # bytes of an argument
LONGEST = 2**100  # a number of bytes that errors print
STORAGE = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}
HOST_ACCESS = {
    "raw_pointer": abi.lib.CLG_RAW_POINTER,
    "use_host_ptr": abi.lib.CLG_USE_HOST_PTR,
    "staged": abi.lib.CLG_STAGED,
}


class Lifetime:
    """Releases a context's handle when the context and all its plans are gone, but not while the interpreter ends."""

    def __init__(self, destroy: Any, handle: Any) -> None:
        weakref.finalize(self, destroy, handle).atexit = False


class DeviceContext:
    """A device, its queue and its kernels.

    Parameters
    ----------
    cl_context, cl_device, queue : pyopencl objects
    ffi, lib : cffi module objects, optional
        Of the C runtime that the context belongs to.
    device : DeviceInfo, optional
        What planners rely on; by default what the device reports.

    Attributes
    ----------
    device : DeviceInfo
    handle : cffi pointer
        The C runtime's handle of the context.
    lifetime : Lifetime
        Keeps the handle valid; plans hold it.
    programs : Programs
    toolchain : Toolchain
        Of the device's driver.
    """

    def __init__(
        self,
        cl_context: Any,
        cl_device: Any,
        queue: Any,
        ffi: Any = abi.ffi,
        lib: Any = abi.lib,
        device: DeviceInfo | None = None,
    ) -> None:
        settings.check()
        self.cl_context, self.cl_device, self.queue = cl_context, cl_device, queue
        self.device = device or devices.describe(cl_device)
        self.ffi, self.lib = ffi, lib
        self._lock = threading.RLock()
        # compilers for CPUs gain next to nothing from threads
        threads = 1 if self.device.is_cpu else min(MOST_THREADS, os.cpu_count() or 1)
        self.toolchain = toolchains.of(cl_device)
        self.programs = Programs(cl_context, cl_device, threads)
        out = ffi.new("clg_context *")
        pointers = [ffi.cast("void *", item.int_ptr) for item in (cl_context, cl_device, queue)]
        access, awake = HOST_ACCESS[self.device.host_access], int(self.device.stays_awake)
        self._check(lib.clg_context_adopt(*pointers, access, awake, out))
        self.handle = out[0]
        self.lifetime = Lifetime(lib.clg_context_destroy, self.handle)
        for probe in self.toolchain.probes(self.device):
            if not probe.is_needless(self.device):
                works: Any = probes.Later(self, probe) if probe.later else probes.works(self, probe)
                self.device = probe.noted(self.device, works)

    def _check(self, status: int) -> None:
        if status:
            raise ExecutionError(self.ffi.string(self.lib.clg_last_error()).decode(), status)

    def alive(self) -> bool:
        """Return whether the handle has not been destroyed."""
        return self.lib.clg_context_counters(self.handle, self.ffi.new("clg_counters *")) == 0

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Any:
        """Return an array where the device reads it without a transfer; its elements are undefined."""
        return arrays.empty(self, shape, dtype)

    def counters(self) -> dict[str, int]:
        """Return what the runtime counted: bytes copied, buffers created and reused, launches, runs that waited."""
        values = self.ffi.new("clg_counters *")
        self._check(self.lib.clg_context_counters(self.handle, values))
        names = ("bytes_to_device", "bytes_to_host", "buffers_created", "buffers_reused", "launches", "waits")
        return {name: getattr(values, name) for name in names}

    def kernel(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        options: tuple[str, ...] = (),
    ) -> PlannedKernel:
        """Return a new kernel of a file in the kernels folder; its program is built when the kernel is first used.

        Parameters
        ----------
        file, name : str
            The file, relative to the folder, and the kernel in it; the file's other kernels are left out. The prelude
            comes first; `#include "folder/file.cl"` is resolved in the kernels folder.
        defines : mapping
            Macros; they precede the source as text, so they count in the cache's key.
        dtype : str
            Sets the prelude's STORAGE and BRAIN.
        options : tuple of str
            Options of the compiler in addition to ``-cl-std=CL1.2``.
        """
        macros = {"STORAGE": STORAGE[dtype], **({"BRAIN": 1} if dtype == "bfloat16" else {}), **(defines or {})}
        text, more = self.toolchain.kernel_text(file, name, macros)
        return PlannedKernel(self.programs, text, ("-cl-std=CL1.2", *options, *more), name)

    def expect_possible(self, problem: Problem) -> None:
        """Check that the device can hold a problem.

        Raises
        ------
        ProblemError
            If the device does not have the problem's dtype, or an argument is larger than any address space.
        """
        if problem.dtype == "float64" and not self.device.has_fp64:
            raise ProblemError(
                f"[{problem.kind}] got dtype float64, expected float32, float16 or bfloat16: "
                f"{self.device.name} has no float64"
            )
        self.expect_addressable(problem.kind, problem.arguments())

    @staticmethod
    def expect_addressable(kind: str, arguments: Sequence[Argument]) -> None:
        """Check that a machine can address each argument of a problem or a graph.

        Raises
        ------
        ProblemError
            If an argument is larger than any address space.
        """
        for argument in arguments:
            if argument.nbytes > LARGEST:
                told = argument.nbytes < LONGEST  # Python refuses to print numbers of thousands of digits
                size = f"shape {argument.shape}, {argument.nbytes} bytes" if told else f"more than {LONGEST} bytes"
                raise ProblemError(
                    f"[{kind}] got {argument.name} of {size}, expected at most {LARGEST}: no machine addresses more"
                )

    def plan_began(self) -> float:
        """Return the clock where ``CLGRAFT_VERBOSE`` asks for plans, else 0."""
        began: float = self.lib.clg_verbose_begin(self.lib.CLG_VERBOSE_PLAN)
        return began

    def problem_clock(self) -> float:
        """Return the clock where ``CLGRAFT_VERBOSE`` asks for the problems of graphs, else 0."""
        now: float = self.lib.clg_verbose_begin(self.lib.CLG_VERBOSE_PROBLEM)
        return now

    def problem_planned(self, problem: Problem, name: str, began: float, ended: float) -> None:
        """Print the line of a problem of a graph if it is asked for."""
        if began:
            self.lib.clg_verbose_line(self.lib.CLG_VERBOSE_PROBLEM, label(problem, name).encode(), began, ended - began)

    def plan_ended(self, problem: Problem, name: str, began: float) -> None:
        """Print the line of a plan if it is asked for."""
        if began:
            self.lib.clg_verbose_end(self.lib.CLG_VERBOSE_PLAN, label(problem, name).encode(), began)

    def build(self, *planned: Launches, kept: Collection[bytes] = ()) -> None:
        """Build the programs that launches need and that are not there yet; the driver has those of `kept` keys."""
        self.programs.build(
            (launch.kernel for launches in planned for launch in launches.launches if 0 not in launch.global_size), kept
        )

    def hand_over(self, problem: Problem, launches: Launches, name: str) -> Any:
        """Hand launches to the C runtime and return the handle of the plan that it made of them.

        Raises
        ------
        BuildError
            If the device's compiler refuses a kernel.
        """
        kept = build_processes.build_ahead(self.cl_device, problem.arguments(), launches)
        self.build(launches, kept=kept)
        keep: list[Any] = []
        spec = plan_spec(self.ffi, self.lib, problem, name, self.device.name, launches, keep)
        out = self.ffi.new("clg_plan *")
        self._check(self.lib.clg_plan_assemble(self.handle, spec, out))
        return out[0]
