"""Contexts: a device with its queue, its compiled kernels and its plans."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core import abi, devices, program_cache, runtimes, tuning
from clgraft.core.errors import BuildError, Declined, ExecutionError, ProblemError
from clgraft.core.plan import (
    DTYPE_CODES,
    ROLES,
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Local,
    Plan,
    Scalar,
    Steps,
    Workspace,
)
from clgraft.core.problem import Problem

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
LARGEST = 2**47  # bytes of an argument
STORAGE = {"float32": 32, "float16": 16, "float64": 64}
WITHOUT_PREFETCH = ("Oclgrind",)  # cannot make a kernel that asks for one
HOST_ACCESS = {"raw_pointer": 1, "use_host_ptr": 2, "staged": 3}
INCLUDE = re.compile(r'^\s*#include\s+"([\w./]+)"\s*$', re.M)


@cache
def kernel_source(file: str) -> str:
    """Give a kernel file's text with its includes in place, each file once, lines numbered as in the files."""
    seen: set[str] = set()

    def read(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        path = KERNELS / name
        if not path.is_file():
            raise BuildError(f"[kernel] got file {name!r}, expected one of the kernels folder")
        pieces, line = [f'#line 1 "{name}"\n'], 1
        text = path.read_text()
        position = 0
        for found in INCLUDE.finditer(text):
            pieces.append(text[position : found.start()])
            line = text.count("\n", 0, found.end()) + 1
            pieces.append("\n" + read(found[1]) + f'\n#line {line} "{name}"')
            position = found.end()
        pieces.append(text[position:] + "\n")
        return "".join(pieces)

    return read("prelude.cl") + read(file)


class Lifetime:
    """Gives up a context's handle when the context and all its plans are gone, but not while the interpreter ends."""

    def __init__(self, destroy: Any, handle: Any) -> None:
        weakref.finalize(self, destroy, handle).atexit = False


class Context:
    """A device, its queue, its kernels and its plans.

    Made by `context`. Plans are cached by problem; runs of one context are serialised.

    Attributes
    ----------
    device : devices.DeviceInfo
    cl_device, cl_context, queue : pyopencl objects
    """

    def __init__(self, cl_context: Any, cl_device: Any, queue: Any, ffi: Any = abi.ffi, lib: Any = abi.lib) -> None:
        self.cl_context, self.cl_device, self.queue = cl_context, cl_device, queue
        self.device = devices.describe(cl_device)
        self.ffi, self.lib = ffi, lib
        self._lock = threading.RLock()
        self._plans: dict[tuple[Problem, str | None], Plan] = {}
        self._programs: dict[Any, Any] = {}
        out = ffi.new("clg_context *")
        pointers = [ffi.cast("void *", item.int_ptr) for item in (cl_context, cl_device, queue)]
        self._check(lib.clg_context_adopt(*pointers, HOST_ACCESS[self.device.host_access], out))
        self.handle = out[0]
        self.lifetime = Lifetime(lib.clg_context_destroy, self.handle)

    @classmethod
    def on(cls, selector: str | None, ffi: Any = abi.ffi, lib: Any = abi.lib) -> Context:
        """Make a context of its own on the device that a selector names (see `devices.select`)."""
        import pyopencl as cl

        _refuse_after_fork()
        with runtimes.affinity_kept():
            device = devices.select(selector)
            cl_context = cl.Context([device])
            return cls(cl_context, device, cl.CommandQueue(cl_context, device), ffi, lib)

    def _check(self, status: int) -> None:
        if status:
            raise ExecutionError(self.ffi.string(self.lib.clg_last_error()).decode(), status)

    def alive(self) -> bool:
        """Whether the handle has not been destroyed."""
        return self.lib.clg_context_counters(self.handle, self.ffi.new("clg_counters *")) == 0

    def counters(self) -> dict[str, int]:
        """Give what the runtime counted: bytes copied, buffers created and reused, launches."""
        values = self.ffi.new("clg_counters *")
        self._check(self.lib.clg_context_counters(self.handle, values))
        names = ("bytes_to_device", "bytes_to_host", "buffers_created", "buffers_reused", "launches")
        return {name: getattr(values, name) for name in names}

    def kernel(
        self,
        file: str,
        name: str,
        defines: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        options: tuple[str, ...] = (),
    ) -> Any:
        """Give a fresh kernel of a file of the kernels folder.

        Parameters
        ----------
        file, name : str
            The file and the kernel in it. The prelude stands in front; `#include "file.cl"` is resolved in the folder.
        defines : mapping
            Macros; put in front as text, so that they count in the cache's key.
        dtype : str
            Sets the prelude's STORAGE.
        options : tuple of str
            The compiler's options besides ``-cl-std=CL1.2``.

        Raises
        ------
        BuildError
            With the compiler's log.
        """
        import pyopencl as cl

        lines = {"STORAGE": STORAGE[dtype], **(defines or {})}
        if self.device.platform in WITHOUT_PREFETCH:
            lines["__builtin_prefetch(...)"] = "((void)0)"
        source = "".join(f"#define {key} {value}\n" for key, value in lines.items()) + kernel_source(file)
        key = (source, options)
        with self._lock, runtimes.affinity_kept():
            if key not in self._programs:
                self._programs[key] = program_cache.build(
                    self.cl_context, self.cl_device, source, ("-cl-std=CL1.2", *options)
                )
            if not runtimes.caches_can_grow():
                # pyopencl keeps lists of arguments in a database, and some versions of it wait for ever for room
                cl._PYOPENCL_NO_CACHE = True
            return cl.Kernel(self._programs[key], name)

    def choose(self, problem: Problem, algorithm: str | None = None) -> tuple[Steps, str, tuple[tuple[str, str], ...]]:
        """Choose an implementation; give its steps, its name, and who declined and why.

        A tuned choice comes first (see `tuning`), then the implementations in their order. With `algorithm` only the
        one of that name is asked, for its own settings.
        """
        chosen = self._choose(problem, algorithm)
        return chosen.steps, chosen.algorithm, chosen.declined

    def _choose(self, problem: Problem, algorithm: str | None) -> _Chosen:
        declined: list[tuple[str, str]] = []
        outputs = [argument for argument in problem.arguments() if argument.role != "in"]
        if not any(argument.size for argument in outputs):
            return _Chosen(Steps(()), "empty")
        policy = tuning.policy() if algorithm is None else "off"
        if policy == "full":
            tuning.search_once(problem, self)
        if policy != "off":
            advice = tuning.advice(str(problem), self.device)
            if advice is not None and advice.choice != tuning.HEURISTIC:
                try:
                    steps = self.steps(problem, advice.choice)
                    return _Chosen(steps, advice.choice.algorithm, tuned=str(advice))
                except (Declined, BuildError, ProblemError) as reason:
                    declined.append((str(advice), str(reason)))
        for implementation in problem.implementations():
            if algorithm not in (None, implementation.NAME):
                continue
            try:
                return _Chosen(implementation.plan(problem, self), implementation.NAME, tuple(declined))
            except Declined as reason:
                declined.append((implementation.NAME, str(reason)))
        names = [implementation.NAME for implementation in problem.implementations()]
        raise ProblemError(
            f"[{problem.kind}] got algorithm {algorithm!r} for {problem}, expected one of {names} that serves it"
            + "".join(f"; {name}: {reason}" for name, reason in declined)
        )

    def steps(self, problem: Problem, choice: tuning.Choice) -> Steps:
        """Give the steps of one choice.

        Raises
        ------
        Declined
            If its implementation does not serve the problem, or not with these settings.
        ProblemError
            If there is no such implementation.
        BuildError
            If the device's compiler refuses a kernel.
        """
        by_name = {implementation.NAME: implementation for implementation in problem.implementations()}
        if choice.algorithm not in by_name:
            raise ProblemError(f"[{problem.kind}] got algorithm {choice.algorithm!r}, expected one of {list(by_name)}")
        implementation = by_name[choice.algorithm]
        if not choice.settings:
            return implementation.plan(problem, self)
        if not hasattr(implementation, "candidates"):
            raise Declined(f"{choice.algorithm} has no settings")
        return implementation.plan(problem, self, dict(choice.settings))

    def assemble(self, problem: Problem, algorithm: str | None = None) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
        """Plan a problem and hand it to the runtime; give the ABI handle, the algorithm's name and who declined."""
        self._expect_possible(problem)
        chosen = self._choose(problem, algorithm)
        return self._hand_over(problem, chosen.steps, chosen.algorithm), chosen.algorithm, chosen.declined

    def _expect_possible(self, problem: Problem) -> None:
        if problem.dtype == "float64" and not self.device.has_fp64:
            raise ProblemError(
                f"[{problem.kind}] got dtype float64, expected float32 or float16: {self.device.name} has no float64"
            )
        for argument in problem.arguments():
            if argument.nbytes > LARGEST:
                raise ProblemError(
                    f"[{problem.kind}] got {argument.name} of shape {argument.shape}, {argument.nbytes} bytes, expected"
                    f" at most {LARGEST}: no machine addresses more"
                )

    def _hand_over(self, problem: Problem, steps: Steps, name: str) -> Any:
        keep: list[Any] = []
        spec = _spec(self.ffi, problem, f"{problem} | {name} on {self.device.name}", steps, keep)
        out = self.ffi.new("clg_plan *")
        self._check(self.lib.clg_plan_assemble(self.handle, spec, out))
        return out[0]

    def plan_of(self, problem: Problem, steps: Steps, name: str) -> Plan:
        """Give a plan of steps that are at hand, which is not kept."""
        self._expect_possible(problem)
        return Plan(self, problem, name, (), self._hand_over(problem, steps, name))

    def plan(self, problem: Problem, algorithm: str | None = None) -> Plan:
        """Give the plan of a problem, made on its first use.

        Parameters
        ----------
        problem : Problem
        algorithm : str, optional
            Insist on one implementation by its name; by default a tuned choice, else the first that does not decline.

        Raises
        ------
        ArgumentError
            If ``CLGRAFT_TUNE`` holds a word that is no policy.
        ProblemError
            If the device cannot serve the dtype, or the named implementation declines.
        BuildError
            If the device's compiler refuses a kernel.
        """
        found = self._plans.get((problem, algorithm))
        if found is not None:
            return found
        with self._lock:
            found = self._plans.get((problem, algorithm))
            if found is None:
                self._expect_possible(problem)
                chosen = self._choose(problem, algorithm)
                handle = self._hand_over(problem, chosen.steps, chosen.algorithm)
                found = Plan(self, problem, chosen.algorithm, chosen.declined, handle, chosen.tuned)
                self._plans[problem, algorithm] = found
            return found

    def problems(self) -> tuple[Problem, ...]:
        """Give the problems that were planned so far, each once."""
        with self._lock:
            return tuple(dict.fromkeys(problem for problem, _ in self._plans))


@dataclass(frozen=True)
class _Chosen:
    """What `Context.choose` found; `tuned` says which tuned choice it was, if it was one."""

    steps: Steps
    algorithm: str
    declined: tuple[tuple[str, str], ...] = ()
    tuned: str = ""


def _spec(ffi: Any, problem: Problem, description: str, steps: Steps, keep: list[Any]) -> Any:
    """Write steps as the runtime's structs; `keep` holds what they point to."""
    arguments = problem.arguments()
    places = {argument.name: i for i, argument in enumerate(arguments)}
    scalars = {name: i for i, name in enumerate(problem.scalars())}
    bindings: list[dict[str, int]] = []
    launches: list[dict[str, Any]] = []
    for launch in steps.launches:
        if 0 in launch.global_size:
            continue
        first = len(bindings)
        bindings += [_binding(item, places, scalars) for item in launch.arguments]
        launches.append(_launch(ffi, launch, first, places))
    spec = ffi.new("clg_plan_spec *")
    for field, kind, items in (
        ("arguments", "clg_argument[]", [_argument(ffi, argument) for argument in arguments]),
        ("bindings", "clg_binding[]", bindings),
        ("launches", "clg_launch[]", launches),
    ):
        block = ffi.new(kind, items)
        keep.append(block)
        setattr(spec, field, block)
        setattr(spec, field[:-1] + "_count" if field != "launches" else "launch_count", len(items))
    text = ffi.new("char[]", description.encode())
    keep.append(text)
    spec.description = text
    spec.scalar_count = len(scalars)
    spec.workspace_bytes = steps.workspace_bytes
    return spec


def _argument(ffi: Any, argument: Any) -> dict[str, Any]:
    return {
        "size": ffi.sizeof("clg_argument"),
        "role": ROLES[argument.role],
        "dtype": DTYPE_CODES[argument.dtype],
        "ndim": len(argument.shape[:8]),
        "shape": list(argument.shape[:8]),
        "bytes": argument.nbytes,
        "name": argument.name.encode()[:31],
    }


def _launch(ffi: Any, launch: Launch, first: int, places: dict[str, int]) -> dict[str, Any]:
    return {
        "kernel": ffi.cast("void *", launch.kernel.int_ptr),
        "dims": len(launch.global_size),
        "has_local": launch.local_size is not None,
        "first_binding": first,
        "binding_count": len(launch.arguments),
        "global_size": [int(v) for v in launch.global_size],
        "local_size": [int(v) for v in launch.local_size or ()],
        "writes": sum(1 << places[name] for name in launch.writes),
    }


def _binding(item: Any, places: dict[str, int], scalars: dict[str, int]) -> dict[str, int]:
    if isinstance(item, Buffer):
        return {"kind": 1, "index": places[item.name]}
    if isinstance(item, Workspace):
        return {"kind": 2, "index": item.itemsize, "value": item.offset_bytes}
    if isinstance(item, Constant):
        raw = np.asarray(item.value).tobytes()
        return {"kind": 3, "bytes": len(raw), "value": int.from_bytes(raw, "little")}
    if isinstance(item, Scalar):
        return {"kind": 4, "index": scalars[item.name], "bytes": np.dtype(item.dtype).itemsize}
    if isinstance(item, Accumulate):
        return {"kind": 5, "index": places[item.name]}
    if isinstance(item, Local):
        return {"kind": 6, "value": item.nbytes}
    raise TypeError(f"[plan] got {item!r} as a kernel argument, expected a binding of clgraft.core.plan")


_contexts: dict[str, Context] = {}
_contexts_lock = threading.Lock()
_owner: list[int] = []  # the process that first made a context


def _refuse_after_fork() -> None:
    if _owner and _owner[0] != os.getpid():
        raise ExecutionError(
            f"[context] got process {os.getpid()}, a child of {_owner[0]} by fork(), expected the process that"
            " first used OpenCL: drivers do not survive fork(); start workers with 'spawn' or before the first use",
            abi.lib.CLG_FORKED,
        )
    if not _owner:
        _owner.append(os.getpid())


def context(selector: str | None = None) -> Context:
    """Give the process's context for a device, made on first use.

    Parameters
    ----------
    selector : str, optional
        ``cpu``, ``gpu``, part of a platform's or a device's name, or ``platform:device`` numbers.
        By default what ``CLGRAFT_DEVICE`` says, else the best device there is.

    Raises
    ------
    DeviceError
        If it names no device; the text lists what there is.
    ExecutionError
        In a child that was forked after OpenCL was used.
    """
    name = selector or os.environ.get("CLGRAFT_DEVICE") or ""
    with _contexts_lock:
        if name not in _contexts or _owner[0] != os.getpid():
            _contexts[name] = Context.on(name or None)
        return _contexts[name]


def adopt(cl_context: int, cl_device: int, cl_queue: int, ffi: Any = abi.ffi, lib: Any = abi.lib) -> Context:
    """Make a context on somebody else's OpenCL objects, given by address; they are retained."""
    import pyopencl as cl

    _refuse_after_fork()
    return Context(
        cl.Context.from_int_ptr(cl_context, True),
        cl.Device.from_int_ptr(cl_device, False),
        cl.CommandQueue.from_int_ptr(cl_queue, True),
        ffi,
        lib,
    )
