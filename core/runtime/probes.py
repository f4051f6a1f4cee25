"""Finds out what works on a device, by kernels whose results are known: `Probe` of a toolchain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.errors import BuildError
from clgraft.core.log import log
from clgraft.core.runtime import build_processes, program_cache, toolchains
from clgraft.core.runtime.programs import new_kernel
from clgraft.core.runtime.toolchains.base import Probe

CHILD = Path(__file__).with_name("probe_child.py")
LONGEST = 60  # seconds that a child may take

_known: dict[str, bool] = {}  # whether a probe succeeds, by the key of its program


class Later:
    """A bool: whether a probe succeeds, which is found out when somebody first wants to know.

    Parameters
    ----------
    context : DeviceContext
    probe : Probe
    """

    def __init__(self, context: Any, probe: Probe) -> None:
        kernel = _kernel(context, probe)
        self._asked = context.cl_device, kernel, probe
        self._is = context.cl_device, kernel.source, kernel.options, probe.field

    def __bool__(self) -> bool:
        return _works(*self._asked)

    def __repr__(self) -> str:
        return repr(bool(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Later) and self._is == other._is:  # of one device's contexts: nobody needs to ask
            return True
        return bool(self) == other


def works(context: Any, probe: Probe) -> bool:
    """Return whether a probe succeeds on a device context's device.

    Its kernel is built and run in an OpenCL context of its own, because a fault would end every use of the context,
    once for a device in a process. Success is noted in the program cache.

    Parameters
    ----------
    context : DeviceContext
    probe : Probe
    """
    return _works(context.cl_device, _kernel(context, probe), probe)


def _kernel(context: Any, probe: Probe) -> Any:
    return context.kernel(probe.file, probe.kernel, probe.defines, probe.dtype)


def _works(device: Any, kernel: Any, probe: Probe) -> bool:
    note, place = program_cache.key_of(device, kernel.source, kernel.options, what="works"), program_cache.folder()

    def noted() -> bool:
        return place is not None and program_cache.is_noted(place, note)

    if note not in _known and not noted():
        with toolchains.of(device).probing(note):
            if not noted():  # by another process meanwhile
                tried = not probe.in_child or _succeeds_in_child(device, kernel, probe)
                _known[note] = tried and succeeds(device, kernel.source, kernel.options, probe)
                if _known[note] and place is not None:
                    program_cache.write_note(place, note)
    return _known.setdefault(note, True)


def _succeeds_in_child(cl_device: Any, kernel: Any, probe: Probe) -> bool:
    """Return whether a probe succeeds in a child process."""
    platform = cl_device.platform
    number = platform.get_devices().index(cl_device)
    task = {
        "device": (platform.name, platform.version, number),
        "what": probe.what,
        "source": kernel.source,
        "options": kernel.options,
    }
    if not build_processes.is_python(sys.executable):
        return False
    command = [sys.executable, "-c", build_processes.START, str(CHILD), "", *(place for place in sys.path if place)]
    try:
        done = subprocess.run(command, input=json.dumps(task), text=True, capture_output=True, timeout=LONGEST)
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("[kernel] %s does without %s: %s", cl_device.name, probe.what, error)
        return False
    if done.returncode:
        log.debug("[kernel] %s does without %s: %s", cl_device.name, probe.what, done.stderr[-400:])
    return done.returncode == 0


def succeeds(cl_device: Any, source: str, options: tuple[str, ...], probe: Probe) -> bool:
    """Run a probe's kernel and compare what it computes."""
    import pyopencl as cl

    result = np.full(probe.expected.shape, np.nan, probe.expected.dtype)
    try:
        cl_context = cl.Context([cl_device])
        queue = cl.CommandQueue(cl_context)
        program = program_cache.build(cl_context, cl_device, source, options)
        built = new_kernel(program, probe.kernel)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(cl_context, flags, hostbuf=array) for array in (*probe.inputs, result)]
        set_argument: Any = built.set_arg
        bound = [constant.value for constant in probe.constants]
        for buffer in buffers:
            bound += [buffer, np.uint64(0)]
        for position, value in enumerate(bound):
            set_argument(position, value)
        cl.enqueue_nd_range_kernel(queue, built, (probe.items,), (probe.items,))
        cl.enqueue_copy(queue, result, buffers[-1])
    except (cl.Error, BuildError) as error:
        log.debug("[kernel] %s does without %s: %s", cl_device.name, probe.what, error)
        return False
    if not np.array_equal(result, probe.expected):
        log.debug("[kernel] %s does without %s: its results are wrong", cl_device.name, probe.what)
        return False
    return True
