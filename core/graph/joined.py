"""Joins launches that follow each other into one, on CPUs, where each wakes all threads and waits for them.

The joined launch runs the kernels of its stages, one stage after the other (`kernels/common/joined.cl`).
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from clgraft.core.graph.passes.parts import peaks
from clgraft.core.graph.structure import Node
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    Local,
    Table,
    Tickets,
    Workspace,
    ints,
)
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import Argument, ceil_div, round_up
from clgraft.core.runtime.joining import VALUES, Part, joinable, part

MEMORIES = 44  # of a joined launch, as kernels/common/joined.cl has them; pyopencl warns of more parameters
STAGES = 64  # of a joined launch: the context's counters have room for more
PROGRAMS = 12  # of a joined launch, which is compiled in one go: together they take less time, but on one core
GROUPS = 64  # of a stage for each core: with more, taking them one by one costs more than a launch
# seconds that PoCL's launch takes more than a stage, and what each core adds: measured on two cores and on 16
LAUNCH = (7e-6, 3.3e-6)
LEAST_GAIN = 200e-6  # seconds: less is not worth the time that the compiler takes
LEAST_SHARE = 0.05  # of the estimated time of all launches
WORD = 8  # bytes of the table's numbers
LOCAL_ALIGN = 128  # bytes
TYPES = {"int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong", "float32": "float", "float64": "double"}


class Joiner(Protocol):
    """What has kernels for joined launches: a `clgraft.core.session.Context`."""

    @property
    def device(self) -> DeviceInfo: ...

    def joined_kernel(self, kernels: Sequence[tuple[Any, Part, str]]) -> Any:
        """Return the kernel that runs launches of several kernels one after the other."""


def possible(device: DeviceInfo) -> bool:
    """Return whether joined launches gain something on a device.

    Launches of Intel's runtime take less, and leave less to gain. How threads wait is written for Linux on x86-64.
    """
    return device.is_cpu and device.is_pocl and sys.platform == "linux" and platform.machine() == "x86_64"


def join_launches(
    context: Joiner, launches: Launches, arguments: Iterable[Argument], added: Collection[str], nodes: Iterable[Node]
) -> Launches:
    """Return launches of which some that follow each other are one, where that saves enough time.

    Parameters
    ----------
    context : Joiner
    launches : Launches
    arguments : iterable of Argument
        Of the plan that the launches are for.
    added : collection of str
        Those of them that are added to.
    nodes : iterable of Node
        What the launches compute.
    """
    device = context.device
    of_launch, of_core = LAUNCH
    of_each = of_launch + of_core * device.compute_units
    least = max(LEAST_GAIN, LEAST_SHARE * _seconds(nodes, device))
    if (len(launches.launches) - 1) * of_each < least:
        return launches
    runs: list[_Chain | Launch] = []
    for launch in launches.launches:
        if 0 in launch.global_size:
            continue
        stage = _stage(launch, GROUPS * device.compute_units, added)
        if stage is None:
            runs.append(launch)
            continue
        chain = runs[-1] if runs else None
        if not isinstance(chain, _Chain) or not chain.takes(stage):
            chain = _Chain()
            runs.append(chain)
        chain.add(stage)
    saved = sum(len(run.stages) - 1 for run in runs if isinstance(run, _Chain))
    if not saved or saved * of_each < least:
        return launches
    sizes = {argument.name: np.dtype(argument.dtype).itemsize for argument in arguments}
    _share([run for run in runs if isinstance(run, _Chain) and len(run.stages) > 1])
    made = tuple(run.launch(context, sizes) if isinstance(run, _Chain) else run for run in runs)
    return replace(launches, launches=made)


def _share(chains: Sequence[_Chain]) -> None:
    """Let chains have programs together, as far as these do not become larger than one of a chain may be."""
    shared: list[dict[bytes, _Stage]] = []
    for chain in sorted(chains, key=lambda chain: -len(chain.programs)):
        fitting = [
            programs
            for programs in shared
            if len({*programs, *chain.programs}) <= PROGRAMS and _alike(next(iter(programs.values())), chain.stages[0])
        ]
        if not fitting:
            shared.append({})
        programs = max(fitting, key=lambda one: len(one.keys() & chain.programs.keys()), default=shared[-1])
        for key, stage in chain.programs.items():
            programs.setdefault(key, stage)
        chain.programs = programs


def _alike(one: _Stage, other: _Stage) -> bool:
    """Return whether the kernels of two stages may be in one program."""
    first, second = one.launch.kernel, other.launch.kernel
    return first.storage == second.storage and joinable(first.options, second.options)


def _seconds(nodes: Iterable[Node], device: DeviceInfo) -> float:
    """Estimate what problems take at least, as `passes.parts` does."""
    bandwidth, speed = peaks(device)
    problems = [node.problem for node in nodes]
    moved = (sum(argument.nbytes for argument in problem.arguments()) for problem in problems)
    return sum(math.hypot(nbytes / bandwidth, problem.operations / speed) for nbytes, problem in zip(moved, problems))


@dataclass(frozen=True)
class _Stage:
    """A launch that can be joined."""

    launch: Launch
    part: Part
    items: tuple[Any, ...]

    @property
    def memories(self) -> list[str]:
        """The names of the buffers that it uses; the workspace has none."""
        return [_memory(item) for item in self.items if isinstance(item, (Buffer, Workspace))]

    @property
    def local(self) -> int:
        """Bytes of local memory."""
        return sum(round_up(item.nbytes, LOCAL_ALIGN) for item in self.items if isinstance(item, Local))


def _memory(item: Buffer | Workspace) -> str:
    return item.name if isinstance(item, Buffer) else ""


def _stage(launch: Launch, most: int, added: Collection[str]) -> _Stage | None:
    """Return a launch as a stage; None if it has to stay alone."""
    if launch.local_size is None or math.prod(launch.local_size) != 1 or launch.writes:
        return None
    if math.prod(launch.global_size) > most:
        return None
    one = part(launch.kernel.text, launch.kernel.function_name)
    items = tuple(
        Constant(np.int32(item.name in added)) if isinstance(item, Accumulate) else item for item in launch.arguments
    )
    kinds = (Buffer, Workspace, Constant, StructConstant, Local, Tickets)
    if one is None or not all(isinstance(item, kinds) for item in items):
        return None
    if one.types is None and any(isinstance(item, StructConstant) for item in items):
        return None
    return _Stage(launch, one, items)


@dataclass
class _Chain:
    """Stages that become one launch."""

    stages: list[_Stage] = field(default_factory=list)
    programs: dict[bytes, _Stage] = field(default_factory=dict)  # a stage of each
    memories: dict[str, int] = field(default_factory=dict)

    def takes(self, stage: _Stage) -> bool:
        """Return whether a stage may follow."""
        if not self.stages:
            return True
        return (
            _alike(self.stages[0], stage)
            and len(self.stages) < STAGES
            and len({*self.programs, stage.launch.kernel.key}) <= PROGRAMS
            and len({*self.memories, *stage.memories}) <= MEMORIES
        )

    def add(self, stage: _Stage) -> None:
        """Add a stage."""
        self.stages.append(stage)
        self.programs.setdefault(stage.launch.kernel.key, stage)
        for name in stage.memories:
            self.memories.setdefault(name, len(self.memories))

    def launch(self, context: Joiner, sizes: dict[str, int]) -> Launch:
        """Return the stages as one launch."""
        if len(self.stages) == 1:
            return self.stages[0].launch
        stages = self.programs.values()
        joined = context.joined_kernel([(one.launch.kernel, one.part, _call(one)) for one in stages])
        workers = context.device.compute_units
        bound: list[Any] = [Buffer(name) if name else Workspace(0, 1) for name in self.memories]
        bound += bound[:1] * (MEMORIES - len(bound))
        local = max(max(stage.local for stage in self.stages), LOCAL_ALIGN)
        arguments = (*bound, Table(self._table(sizes)), Tickets(), *ints(workers), Local(local))
        return Launch(joined, (workers, 1, 1), (1, 1, 1), arguments)

    def _table(self, sizes: dict[str, int]) -> bytes:
        items = [sizes.get(name, 1) for name in self.memories]
        numbers = {key: number for number, key in enumerate(self.programs)}
        places, rows, place = [], [], 1 + MEMORIES + len(self.stages)
        for stage in self.stages:
            grid = (*stage.launch.global_size, 1, 1)[:3]
            head = (numbers[stage.launch.kernel.key], math.prod(grid), *grid)
            row = np.array(head, np.int64).tobytes() + self._row(stage)
            places.append(place)
            rows.append(row)
            place += len(row) // WORD
        items += [1] * (MEMORIES - len(items))
        return np.array([len(self.stages), *items, *places], np.int64).tobytes() + b"".join(rows)

    def _row(self, stage: _Stage) -> bytes:
        """Return a stage's arguments as the words that `_call` reads."""
        words, local = b"", 0
        for item in stage.items:
            if isinstance(item, (Buffer, Workspace)):
                words += np.array([self.memories[_memory(item)], item.offset_bytes], np.int64).tobytes()
            elif isinstance(item, Local):
                words += np.array([local], np.int64).tobytes()
                local += round_up(item.nbytes, LOCAL_ALIGN)
            elif not isinstance(item, Tickets):
                value = item.value if isinstance(item, StructConstant) else np.asarray(item.value).tobytes()
                words += value + bytes(-len(value) % WORD)
        return words


def _call(stage: _Stage) -> str:
    """Return the arguments of a stage's function, from the words of its row."""
    texts: list[str] = []
    types, word = stage.part.types or (), 5  # after the number of the kernel and the grid
    for i, item in enumerate(stage.items):
        here = f"row[{word}]"
        if isinstance(item, (Buffer, Workspace)):
            texts.append(f"(global void *)(memory[{here}] + row[{word + 1}]), 0")
            word += 2
        elif isinstance(item, Local):
            texts.append(f"room + {here}")
            word += 1
        elif isinstance(item, Tickets):
            texts.append("tickets")
        else:
            known = types[i] if i < len(types) else TYPES[np.asarray(item.value).dtype.name]
            texts.append(f"*(const global {known.removeprefix('const ')} *)&{here}")
            nbytes = len(item.value) if isinstance(item, StructConstant) else WORD
            word += ceil_div(nbytes, WORD)
    place = len(texts) if stage.part.types is None else len(types)
    texts[place:place] = VALUES
    return ", ".join(texts)
