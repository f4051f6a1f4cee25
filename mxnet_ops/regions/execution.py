"""Makes the passes of regions for C to run, and holds the arrays that live from forward to backward."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from clgraft import core
from clgraft.core import settings
from clgraft.core.graph.compiled import preferences_of
from clgraft.core.graph.passes import Image
from clgraft.core.operators.dropout import KEY_WORDS
from clgraft.core.planning.precision import mixed_precision
from clgraft.core.runtime.arrays import in_one_block
from clgraft.core.runtime.plan import SKIP
from clgraft.mxnet_ops.engine.arrays import MIXED
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.operator import Shape
from clgraft.mxnet_ops.engine.passes import Copy, copy_of, kept_shares, memory_of
from clgraft.mxnet_ops.engine.random_numbers import Stream
from clgraft.mxnet_ops.engine.registration import STARTS
from clgraft.mxnet_ops.regions.constants import constants_of
from clgraft.mxnet_ops.regions.lowering import RegionLowering
from clgraft.mxnet_ops.regions.passes import RegionPass
from clgraft.mxnet_ops.regions.region import OUTSIDE, RegionOperator
from clgraft.mxnet_ops.regions.residents import Residents, residents_of

MOST_PROGRAMS = 512  # regions and shapes that stay compiled
LONG = 24  # operators of a region that counts as one below; of shorter regions there may be more
MOST_RECENT = 8  # programs that keep arrays for their next operators
MOST_FREE = 2  # sets of kept arrays that wait for the next operator of a program, if it is long


class RegionProgram:
    """Everything that a region does for given shapes, compiled when it is first needed; shared by its operators.

    Attributes
    ----------
    constants : mapping of str to array or None
        Parameters of a frozen region, which infers only. Not `Constants`, which hold their programs.
    region : cffi pointer
        The ``clg_mx_region`` that C runs: it holds the passes that have been made.
    residents : Residents or None
        Parameters and moving statistics that stay on the device.
    places : dict of str to int
        Where a region at work has its own arrays: keys of random numbers, then what lives from forward to backward.
    operators : int
        How many it has, up to `LONG`.
    """

    def __init__(
        self,
        context: core.Context,
        region: RegionOperator,
        shapes: tuple[Shape, ...],
        dtype: str,
        constants: Mapping[str, Any] | None = None,
        mixed: str | None = None,
        residents: Residents | None = None,
    ) -> None:
        self.context, self.dtype, self.constants, self.residents = context, dtype, constants, residents
        self.lowering = RegionLowering(region, shapes, dtype, mixed)
        self.staged = context.device.host_access == "staged"
        self._copied = self._read_twice() if self.staged and constants is None else {}
        names = [*(f"key{number}" for number in range(len(region.draws))), *self.lowering.kept, *self._copied]
        self.places = {name: place for place, name in enumerate(names)}
        forward = ffi.NULL if residents is None else residents.forward
        self.region = ffi.new("clg_mx_region *", {"resident": residents is not None, "forward": forward})
        self._passes: dict[Any, RegionPass] = {}
        self._owners: dict[tuple[int, tuple[int, ...]], Any] = {}
        self.operators = min(len(region.parts), LONG)
        # no lock: a garbage collection may end an operator, which gives back, wherever Python code runs
        self._free: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()

    def make(self, which: int, modes: tuple[int, ...]) -> None:
        """Add the pass for these write requests, and a pattern of residents, to what C runs (see `Pass.bind`)."""
        with self._lock:
            if (which, modes) not in self._owners:
                pattern = dict(self.residents.patterns[modes[-1]]) if self.residents else {}
                made, owners = self._found(which, modes[:-1], pattern).bind(which, modes, self.places, pattern)
                self._owners[which, modes] = made, owners
                lib.clg_mx_add_pass(self.region, made)

    @cached_property
    def zeros(self) -> frozenset[str]:
        """Names of the variables whose gradients are zero, which no pass writes."""
        names = self.lowering.region.names
        return frozenset(names[place] for place in self.lowering.backward(True, range(len(names))).zeros)

    @cached_property
    def learned(self) -> tuple[str, ...]:
        """Names of the residents among the region's variables."""
        region = self.lowering.region
        return tuple(name for name in region.names if name in region.residents)

    @cached_property
    def states(self) -> tuple[str, ...]:
        """Names of the residents among the region's auxiliary states."""
        region = self.lowering.region
        return tuple(name for name in region.auxiliary_names if name in region.residents)

    def kept(self, modes: Sequence[int], learned: Collection[str]) -> dict[str, float]:
        """Return the share that a backward keeps of each of the `states` that it changes.

        Parameters
        ----------
        modes : sequence of int
            Write modes of the inputs' gradients.
        learned : collection of str
            Residents whose gradients are wanted.
        """
        names, states = self.lowering.region.names, self.lowering.region.auxiliary_names
        asked = {*(name for name, mode in zip(self.lowering.region.taken, modes) if mode != SKIP), *learned}
        lowered = self.lowering.backward(True, [place for place, name in enumerate(names) if name in asked])
        found = {states[lowered.bound[name][1]]: keep for name, keep in kept_shares(lowered.graph).items()}
        return {name: found[name] for name in self.states if name in found}

    @cached_property
    def _last(self) -> dict[str, Image]:
        """The values that live from forward to backward in channels last."""
        return self.lowering.settled(preferences_of(self.context))

    def _read_twice(self) -> dict[str, int]:
        """Return the inputs that forward and backward read when training, as names of copies and their bytes."""
        every = range(len(self.lowering.region.taken))
        whole = frozenset(range(len(self.lowering.region.names)))
        passes = self.lowering.forward(True), self.lowering.backward(True, whole)
        read = [{value.name: value.nbytes for value in lowered.graph.inputs} for lowered in passes]
        names = {f"in{place}": copy_of(place) for place in every}
        return {names[name]: nbytes for name, nbytes in read[0].items() if name in names and name in read[1] and nbytes}

    def _found(self, which: int, modes: tuple[int, ...], pattern: Mapping[str, int]) -> RegionPass:
        back, train = which >= 2, bool(which % 2)
        names = self.lowering.region.names
        asked = {*(name for name, mode in zip(self.lowering.region.taken, modes) if mode != SKIP), *pattern}
        wanted = frozenset(place for place, name in enumerate(names) if name in asked) if back else None
        if (train, wanted) not in self._passes:
            lowered = self.lowering.forward(train) if wanted is None else self.lowering.backward(train, wanted)
            given = {} if self.constants is None else self.lowering.named(lowered, self.constants)
            last = self._last if train else {}
            self._passes[train, wanted] = RegionPass(lowered, self.lowering, self.context, given, self.residents, last)
        return self._passes[train, wanted]

    def take(self) -> dict[str, Any]:
        """Return arrays for what lives from forward to backward, where the device reads them without a transfer."""
        try:
            return self._free.pop()
        except IndexError:
            values = self.lowering.forward(True).graph.values
            if self.staged:  # arrays of the runtime: kernels stay bound to them from run to run
                arrays: dict[str, Any] = {n: Copy(self.context, values[n].nbytes) for n in self.lowering.kept}
            else:
                found = in_one_block({n: values[n].nbytes for n in self.lowering.kept})
                arrays = {n: part.view(values[n].dtype).reshape(values[n].shape) for n, part in found.items()}
            return {**arrays, **{name: Copy(self.context, nbytes) for name, nbytes in self._copied.items()}}

    def give_back(self, arrays: dict[str, Any]) -> None:
        """Keep arrays for the next operator that takes some."""
        if len(self._free) * self.operators < MOST_FREE * LONG:
            self._free.append(arrays)

    def forget(self) -> None:
        """Free the arrays that wait for an operator."""
        self._free.clear()


class _Recent:
    """The programs that were used last: those alone keep arrays for their next operators."""

    def __init__(self) -> None:
        self._programs: OrderedDict[RegionProgram, None] = OrderedDict()
        self._operators = 0
        self._lock = threading.Lock()

    def use(self, program: RegionProgram) -> None:
        left = []
        with self._lock:
            if program not in self._programs:
                self._programs[program] = None
                self._operators += program.operators
            self._programs.move_to_end(program)
            while self._operators > MOST_RECENT * LONG:
                left.append(self._programs.popitem(last=False)[0])
                self._operators -= left[-1].operators
        for old in left:
            old.forget()


_recent = _Recent()


@lru_cache(maxsize=MOST_PROGRAMS)
def _program(
    context: core.Context,
    region: RegionOperator,
    shapes: tuple[Shape, ...],
    dtype: str,
    switches: str,
    mixed: str | None,
) -> RegionProgram:
    return RegionProgram(context, region, shapes, dtype, mixed=mixed)


class Execution:
    """A region at work: one per executor, cached graph that waits for its backward, or imperative call.

    C runs its passes. A backward belongs to the last forward: what that forward saved stays until the next one, so that
    a backward may be repeated.

    Parameters
    ----------
    program : RegionProgram

    Attributes
    ----------
    region, own : cffi pointers
        See `clgraft.mxnet_ops.engine.registration.Execution`.
    """

    def __init__(self, program: RegionProgram) -> None:
        self._program = program
        self._kept: dict[str, Any] = {}
        self._pattern = 0
        self._streams: list[tuple[Stream, np.ndarray]] = []
        self.region, self.own = program.region, ffi.new("clg_mx_memory[]", len(program.places) + 1)
        for number, draw in enumerate(program.lowering.region.draws):
            key = np.zeros(KEY_WORDS, np.int32)
            self._streams.append((Stream(draw), key))
            self.own[program.places[f"key{number}"]] = memory_of(key)

    def make(self, which: int, modes: tuple[int, ...]) -> None:
        """Add the pass for these write requests, and a pattern of residents, to the region."""
        self._program.make(which, modes)

    def begin_backward(self, inputs: Callable[[], Sequence[int]], modes: Callable[[], Sequence[int]]) -> int:
        """Return the pattern of what a backward writes to residents, which nobody else does until it ends."""
        program, residents = self._program, self._program.residents
        assert residents is not None
        count = len(residents.homes)
        self._pattern = residents.begin_backward(
            program.learned, lambda: inputs()[-count:], lambda learned: program.kept(modes(), learned)
        )
        return self._pattern

    def end_backward(self, good: bool) -> None:
        """Let others write to residents."""
        residents = self._program.residents
        assert residents is not None
        residents.end_backward(self._pattern, self._program.states, self._program.zeros, good)

    def keep(self) -> None:
        """Take arrays for what lives from forward to backward."""
        self._kept = self._program.take()
        for name, array in self._kept.items():
            self.own[self._program.places[name]] = memory_of(array)

    def draw(self, train: bool) -> None:
        """Draw new keys of random numbers."""
        for stream, key in self._streams:
            stream.advance(train, key)

    def close(self) -> None:
        """Leave the kept arrays to other operators."""
        if self._kept:
            self._program.give_back(self._kept)
            self._kept = {}


def start(context: core.Context, region: RegionOperator, shapes: tuple[Shape, ...], dtype: str) -> Execution:
    """Return a region at work for the shapes of its arguments, with the passes that ``CLGRAFT_GRAPH`` leaves on.

    Its products have the type that its attribute says, or else ``CLGRAFT_PRECISION``.
    """
    switches, mixed = settings.GRAPH.text(), mixed_precision(region.precision or None)
    key: tuple[Any, ...] = (context, shapes, dtype, switches, mixed)
    if region.resident is not None:
        residents = residents_of(region.resident)
        dtype = _with_singles(region, dtype, residents)
        own = residents.program(
            key, lambda: RegionProgram(context, region, shapes, dtype, mixed=mixed, residents=residents)
        )
        _recent.use(own)
        return Execution(own)
    if region.number is None:
        program = _program(context, region, shapes, dtype, switches, mixed)
        _recent.use(program)
        return Execution(program)
    constants = constants_of(region.number)
    if dtype == "float16" and any(constants.arrays[name].dtype == np.float32 for name in region.constants):
        dtype = MIXED  # C is not shown parameters that are constants
    arrays, key = constants.on(context), (context, shapes, dtype, switches, mixed)
    return Execution(constants.program(key, lambda: RegionProgram(context, region, shapes, dtype, arrays, mixed)))


def _with_singles(region: RegionOperator, dtype: str, residents: Residents) -> str:
    """Return the type of a region, of which C has seen what is no resident."""
    if dtype not in ("float16", MIXED):
        return dtype
    entries, states = region.singles
    singles = {name for place, name in enumerate(region.names) if (OUTSIDE, place) in entries}
    singles |= {name for place, name in enumerate(region.auxiliary_names) if place in states}
    kinds = {resident.dtype for name, resident in residents.arrays.items() if name in singles}
    if singles & {*region.taken, *region.auxiliary}:
        kinds.add("float32" if dtype == MIXED else dtype)
    if len(kinds) > 1:
        raise core.ProblemError(
            f"[ocl_region] got {sorted(singles)} of float16 and of float32, expected one type of those next to float16"
        )
    return MIXED if "float32" in kinds else dtype


STARTS[RegionOperator.op_type] = start
