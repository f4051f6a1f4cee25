"""Builds kernels in child processes, for drivers whose compilers work on one program at a time in a process.

Before a plan of many new kernels is handed over, child processes build them and leave them in a cache, where the
calling process finds them. There are two ways; a driver's toolchain says which one it takes, and what it costs
(`Children`):

* Some drivers compile most of a kernel when it is first launched with a work-group size, and keep it in a cache of
  their own. So children launch each kernel once, with a single work-group on zeros. They know launches only: the same
  sources, options, work-group sizes and arguments, so that they build what will run. A note in the program cache says
  that a kernel was given to a child; a note that is wrong costs time and nothing else.
* Others compile a program when it is built, and leave binaries to us: children put them into the program cache.

A child that fails costs time and nothing else, too: what it leaves undone is built by the process that needs it.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core import settings
from clgraft.core.errors import ArgumentError
from clgraft.core.log import log
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Scalar, Tickets, Workspace
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import Argument
from clgraft.core.runtime import building, program_cache, toolchains
from clgraft.core.runtime.crews import Crew, Task
from clgraft.core.runtime.toolchains.base import Children

VARIABLE = settings.BUILD_PROCESSES.name
MOST = 8  # child processes
LARGEST_GROUP = 64 * 2**20  # bytes of a launch for each of its work-groups, above which no child runs it
CHILD = Path(__file__).with_name("build_child.py")
# takes the parent's places of modules, without those of the script: its folder has modules of common names
START = "import runpy, sys; sys.path[:] = sys.argv[3:]; runpy.run_path(sys.argv[1], run_name='__main__')"

_process = os.getpid()  # a child by fork() starts no children
_lock = threading.Lock()
_crews: dict[Any, Crew] = {}


def build_ahead(cl_device: Any, arguments: Iterable[Argument], planned: Launches) -> frozenset[bytes]:
    """Build the kernels of launches in child processes, where they are launched and it is faster, and wait for them.

    Parameters
    ----------
    cl_device : pyopencl.Device
    arguments : iterable of Argument
        Of the problem that the launches are for.
    planned : Launches

    Returns
    -------
    frozenset of bytes
        Keys of the programs that the driver has in its cache, as far as notes say so.
    """
    toolchain = toolchains.of(cl_device)
    children = toolchain.children
    if children is None or not children.launches or not toolchain.keeps_programs():
        return frozenset()
    toolchain.enter_cache()
    place = program_cache.folder()
    if place is None:
        return frozenset()
    try:
        launches = _launches(children, arguments, planned)
        missing = _missing(cl_device, place, launches)
        if missing and _share(cl_device, list(missing.values())):
            missing = {}
        return frozenset(key[0] for key in launches) - {key[0] for key in missing}
    except ArgumentError:  # of a setting
        raise
    except Exception as error:  # this process builds what it needs
        log.info("no child processes build kernels: %s", error)
        return frozenset()


def build_programs(cl_device: Any, kernels: Collection[Any]) -> bool:
    """Have child processes put programs into the program cache, where that is faster, and wait for them.

    Parameters
    ----------
    cl_device : pyopencl.Device
    kernels : collection of PlannedKernel
        Of programs that are not in the cache.

    Returns
    -------
    bool
        Whether children have tried.
    """
    children = toolchains.of(cl_device).children
    if children is None or children.launches or program_cache.folder() is None:
        return False
    try:
        return _share(cl_device, [_program(kernel) for kernel in kernels])
    except ArgumentError:  # of a setting
        raise
    except Exception as error:  # this process builds what it needs
        log.info("no child processes build programs: %s", error)
        return False


def begin(cl_device: Any, what: str, planned: Iterable[tuple[Sequence[Argument], Launches]]) -> None:
    """Have child processes build kernels that are going to be wanted, and do not wait for them.

    One core is left to the caller. What a plan needs comes first as soon as the plan is handed over.

    Parameters
    ----------
    cl_device : pyopencl.Device
    what : str
        What they are for: a note in the program cache says that it was begun, and then nothing is done.
    planned : iterable of (sequence of Argument, Launches)
        Arguments of problems, and the launches for them; not asked for if nothing is done.
    """
    toolchain = toolchains.of(cl_device)
    children, place = toolchain.children, program_cache.folder()
    note = program_cache.key_of(cl_device, what, (), kind="begun", kept_in=str(toolchain.cache_folder()))
    if children is None or place is None or os.getpid() != _process or not is_python(sys.executable):
        return
    if allowed() < 2 or program_cache.is_noted(place, note):
        return
    tasks: dict[Any, Task] = {}
    if not children.launches:
        kernels = (launch.kernel for _, launches in planned for launch in launches.launches)
        tasks = {task.key: task for task in map(_program, kernels)}
    elif toolchain.keeps_programs():
        toolchain.enter_cache()
        for arguments, launches in planned:
            tasks.update(_missing(cl_device, place, _launches(children, arguments, launches)))
    try:
        most = min(allowed() - 1, _most(cl_device, children, len(tasks)))
        if most:
            _crew(cl_device, children).do(list(tasks.values()), most, lambda _: most, at_once=False)
        program_cache.write_note(place, note)
    except Exception as error:  # they are built when they are wanted
        log.info("no child processes build kernels early: %s", error)


def allowed() -> int:
    """Return how many child processes may build kernels: by default one for each core, at most `MOST`; 0 if none may.

    ``CLGRAFT_BUILD_PROCESSES`` holds another number; 0 and 1 mean none.

    Raises
    ------
    ArgumentError
        If it holds something else.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted: int | None = settings.BUILD_PROCESSES.value()
    if wanted is not None:
        return wanted if wanted > 1 else 0
    return min(cores, MOST) if cores > 1 else 0


def processes(kernels: int, children: Children, most: int = sys.maxsize, waiting: int = 0) -> int:
    """Return in how many child processes to build so many kernels; 0 if this process alone is as fast.

    Parameters
    ----------
    kernels : int
    children : Children
        What they cost.
    most : int
        Processes that the device can bear.
    waiting : int
        Processes that need not be started.
    """
    count = min(allowed(), kernels, most)
    if os.getpid() != _process or not is_python(sys.executable):
        return 0
    if count <= waiting:
        return count
    alone, shared = (each * children.seconds_of_a_kernel for each in (kernels, math.ceil(kernels / count)))
    return count if count > 1 and shared + children.seconds_of_a_child < alone else 0


def is_python(executable: str | None) -> bool:
    """Return whether a program is an interpreter, and not an application that contains one."""
    return bool(executable and re.fullmatch(r"(python|pypy)[\d.]*t?", Path(executable).name))


def _memory(item: Any, sizes: Mapping[str, int], workspace_bytes: int) -> int:
    """Return the bytes of the memory that a launch's argument is bound to; 0 if it is a value."""
    if isinstance(item, Buffer):
        return sizes[item.name]
    return workspace_bytes - item.offset_bytes if isinstance(item, Workspace) else 0


def _small(launch: Launch, sizes: Mapping[str, int], workspace_bytes: int) -> bool:
    """Return whether a child can run one work-group of a launch without much memory and time."""
    if 0 in launch.global_size:
        return False
    if any(isinstance(item, Tickets) for item in launch.arguments):
        return True  # a child gets none: it has nothing to do
    largest = max((_memory(item, sizes, workspace_bytes) for item in launch.arguments), default=0)
    groups = math.prod(launch.global_size) // math.prod(launch.local_size) if launch.local_size else 1
    return largest / groups <= LARGEST_GROUP


def _launches(
    children: Children, arguments: Iterable[Argument], planned: Launches
) -> dict[tuple[bytes, str, Any], dict[str, Any]]:
    """Return what a child needs to know of the launches that it can run; whatever differs in a key is compiled anew."""
    sizes = {argument.name: argument.nbytes for argument in arguments}
    return {
        (launch.kernel.key, launch.kernel.function_name, launch.local_size): _launch(launch, sizes, planned)
        for launch in planned.launches
        if max(launch.global_size) <= children.largest_grid and _small(launch, sizes, planned.workspace_bytes)
    }


def _missing(cl_device: Any, place: Path, launches: Mapping[tuple[bytes, str, Any], dict[str, Any]]) -> dict[Any, Task]:
    """Return tasks for the launches that are not noted yet. A launch that was tried is noted: a child that fails once
    fails again."""
    notes = {key: program_cache.note_of(cl_device, *key) for key in launches}
    return {
        key: Task(key, launches[key], building.count, partial(program_cache.write_note, place, note))
        for key, note in notes.items()
        if not program_cache.is_noted(place, note)
    }


def _program(kernel: Any) -> Task:
    """Return the task to put a program into the program cache."""
    what = {"source": kernel.source, "options": kernel.options, "name": kernel.function_name}
    return Task(kernel.key, what, building.count, lambda: None)


def _launch(launch: Launch, sizes: Mapping[str, int], planned: Launches) -> dict[str, Any]:
    return {
        "source": launch.kernel.source,
        "options": launch.kernel.options,
        "name": launch.kernel.function_name,
        "global": [int(size) for size in launch.local_size or launch.global_size],
        "local": None if launch.local_size is None else [int(size) for size in launch.local_size],
        "arguments": [_argument(item, sizes, planned.workspace_bytes) for item in launch.arguments],
    }


def _argument(item: Any, sizes: Mapping[str, int], workspace_bytes: int) -> tuple[str, int | str]:
    """Return the kind of a kernel's argument, and the size of its memory or the bytes of its value."""
    if isinstance(item, (Buffer, Workspace)):
        return "memory", _memory(item, sizes, workspace_bytes)
    if isinstance(item, Local):
        return "local", item.nbytes
    if isinstance(item, Tickets):
        return "tickets", ""
    if isinstance(item, StructConstant):
        return "value", item.value.hex()
    if isinstance(item, Scalar):
        return "value", np.dtype(item.dtype).type(1).tobytes().hex()
    if isinstance(item, Accumulate):
        return "value", bytes(4).hex()
    return "value", np.asarray(item.value).tobytes().hex()  # a Constant


def _share(cl_device: Any, tasks: Sequence[Task]) -> bool:
    """Have child processes do tasks, each the next one when it is free, and wait; return False if that does not pay."""
    driver = toolchains.of(cl_device).children
    if driver is None or os.getpid() != _process:
        return False
    most = _most(cl_device, driver, len(tasks))
    tasks = sorted(tasks, key=lambda task: (-len(task.what["source"]), task.what["source"]))  # what may take long first
    crew = _crew(cl_device, driver)
    with building.told(cl_device.name.strip(), len(tasks)) as step:
        for task in tasks:
            task.begun = partial(step, task.what["name"])
        awaited = crew.do(tasks, min(allowed(), most), partial(processes, len(tasks), driver, most))
        if awaited is not None:
            crew.wait(awaited)
    return awaited is not None


def _most(cl_device: Any, driver: Children, tasks: int) -> int:
    """Return the number of children that tasks keep busy and a device can bear."""
    return min(tasks, cl_device.global_mem_size // driver.memory if driver.memory else sys.maxsize)


def _crew(cl_device: Any, driver: Children) -> Crew:
    """Return the crew of a device."""
    command, environment = _started(cl_device, driver)
    key = tuple(command), tuple(environment.items())
    with _lock:
        if key not in _crews:
            _crews[key] = Crew(command, environment, not driver.memory, partial(_repair, toolchains.of(cl_device)))
        return _crews[key]


def _repair(toolchain: Any) -> None:
    if toolchain.keeps_programs():
        toolchain.repair_cache()  # what has ended a child would end this process


def _started(cl_device: Any, driver: Children) -> tuple[list[str], dict[str, str]]:
    """Return how a device's child is started: the command, and its variables."""
    platform = cl_device.platform
    number = platform.get_devices().index(cl_device)  # several GPUs may have one name
    device = json.dumps([platform.name, platform.version, number])
    command = [sys.executable, "-c", START, str(CHILD), device, *(place for place in sys.path if place)]
    return command, {**os.environ, VARIABLE: "0", **driver.environment}
