"""From checked assignments and a loop to launches: chooses the kernel's shape and writes its macros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clgraft.core.operators.pointwise.loop import Axis, Loop, collapse, count
from clgraft.core.planning.division import MOST as MOST_DIVIDED
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Constant, Launch, Scalar, Workspace, ints
from clgraft.core.problem import SMALL as SMALL_TYPES
from clgraft.core.problem import ceil_div, round_up

GROUP = 256  # work-items per work-group on GPUs
QUAD = 4  # neighbouring elements that a work-item there reads and writes at once
MAP_READS = 2  # of which it has so many on their way at once, in all inputs, where caches hold the result
MAP_READS_PAST = {True: 2, False: 1}  # and so many where they do not; True: of 16 bits, which are half as many bytes
READS_AHEAD = {True: 8, False: 4}  # most loads of a work-item there that are on their way at once, in folds
SINGLES_AHEAD = 8  # the same, of loads of one element
LEAST_OF_GROUPS = 32  # values that make a result there, from which on work-items share it
STAGED_GROUP = 128  # work-items of such a work-group
STAGED_OF_LANE = 16  # of a work-item's row there, at most
FEWEST_LANES = 8  # work-items that share a result there, at least
# is_cpu -> work-items wanted per compute unit, and the least values per part that are worth one
ITEMS_PER_UNIT = {True: 4, False: 2048}
LEAST_PER_ITEM = {True: 16384, False: 64}
GROUPS_PER_UNIT = 4  # work-groups wanted per compute unit of a GPU: as many as run at once
VALUES_PER_ITEM = 16384  # a CPU's work-item is worth its start from about here on
VALUES_PER_PART = 16384
MOST_PARTS = 1024
# of columns in memory: the work-items next to each other read on in lines and pages that these rows have brought
ROWS_PER_PART = 128
ITEMS_OF_ELEMENTS = 64  # per compute unit of a GPU: up to so many elements, each is a work-item's
SPAN = 2**30  # the most work-items of one launch; longer loops stride
# Axes besides the innermost one that kernels are made for. A GPU's folds have one without divisions, which would be
# most of their work; its kernels of few elements, which take no time, have all axes.
SHARED = (0, 2, 4, 8)
SHARED_IN_FOLDS = (0, 1, 2, 4, 8)
SHARED_OF_FEW = (4, 8)
MOST_SHARED = SHARED[-1]
FLAT = 3  # how pointwise_quads reads what is contiguous; else 1 where an input walks along rows, 0 where not
SMALL = 2**32 - SPAN  # so many positions are counted in 32 bits, a stride past the end included


@dataclass
class Launches:
    """Launches with what they need of the workspace (they run in order and share it)."""

    items: list[Launch] = field(default_factory=list)
    workspace_bytes: int = 0


def outgrows_caches(planner: Planner, nbytes: int) -> bool:
    """Return whether outputs are so large that who reads them next finds nothing of them in a cache."""
    return nbytes >= planner.device.kept_in_caches


def rows_past_caches(planner: Planner, nbytes: int, row: int, lanes: int) -> dict[str, int]:
    """Return the macro with which rows of outputs, so many elements each, are stored past the caches, if that gains.

    Rows have to be whole vectors: lines that are stored in part would be read first, to be filled.
    """
    return {"PAST_CACHES": 1} if row % lanes == 0 and outgrows_caches(planner, nbytes) else {}


def generate(planner: Planner, loop: Loop, workspace_offset: int = 0) -> Launches:
    """Plan a loop.

    Parameters
    ----------
    planner : Planner
    loop : Loop
    workspace_offset : int
        Where the loop's own workspace may begin, in bytes; a multiple of 64.

    Returns
    -------
    Launches
        `workspace_bytes` counts from 0.
    """
    return _Generator(planner, loop, workspace_offset).launches()


class _Generator:
    def __init__(self, planner: Planner, loop: Loop, workspace_offset: int) -> None:
        self.planner, self.loop, self.offset = planner, loop, workspace_offset
        self.numbers = tuple(sorted(loop.outputs))
        reads = loop.assignments.reads(self.numbers)
        self.inputs = {n: operand for n, operand in sorted(loop.inputs.items()) if f"x{n}" in reads}
        folded = [axis in loop.folded for axis in range(len(loop.shape))]
        self.axes = collapse(loop.shape, folded, [operand.strides for operand in self.inputs.values()])
        self.inner = self.axes[-1]
        self.walked = all(stride in (0, 1) for stride in self.inner.strides)
        self.is_cpu = bool(planner.device.is_cpu)
        self.one = Axis(1, False, (0,) * len(self.inputs))
        self.row_counts: tuple[int, ...] = SHARED_IN_FOLDS if loop.folded and not self.is_cpu else SHARED
        self.units = int(planner.device.compute_units)
        self.real = "float64" if loop.dtype == "float64" else "float32"
        self.small = loop.dtype in SMALL_TYPES
        self.itemsize = np.dtype(self.real).itemsize
        self.lanes = max(2, min(16, int(planner.device.vector_width) * 4 // self.itemsize))
        self.writes = tuple(r.name for r in loop.outputs.values() if r.name)
        if len(self.writes) < len(self.numbers):
            self.writes = ()  # something else needs what this writes

    # what the kernels see

    def defines(
        self,
        rows: Sequence[Axis],
        kept: Sequence[Axis] = (),
        inner: Axis | None = None,
        lanes: int = 0,
        partial: bool = False,
        any_inner: bool = False,
        unit: int | None = None,
    ) -> dict[str, Any]:
        """Write the macros of one kernel; `inner` is the axis that it walks itself, by `lanes` if there are any.

        `unit` says how all inputs are read, where `inner` does not. With `any_inner` there are the loops of a CPU's
        kernel to which an argument says of every input whether it walks that axis.
        """
        places = list(self.inputs)
        rows = self.shared(rows, 0, self.row_counts)
        kept = self.shared(kept, max(len(rows), MOST_SHARED))
        defines: dict[str, Any] = {}
        if lanes:
            defines["VL"] = lanes
        defines["INDEX"] = "uint" if count(self.axes) < SMALL else "ulong"
        walked = [int(stride != 0) for stride in inner.strides] if inner else [0] * len(places)
        units = walked if unit is None else [unit] * len(places)
        defines["INPUTS(F)"] = " ".join(
            f"F({n}, {operand.kind}, {way})" for (n, operand), way in zip(self.inputs.items(), units)
        )
        defines["OUTPUTS(F)"] = " ".join(
            f"F({n}, {'real' if partial else self.loop.outputs[n].kind})" for n in self.numbers
        )
        defines["SCALARS(F)"] = " ".join(f"F({name})" for name in (*self.loop.scalars, *self.loop.constants))
        defines["AXES(F)"] = " ".join(f"F({a.number})" for a in (*kept, *rows))
        for name, group in (("ROW", rows), ("KEPT", kept)):
            numbers = [axis.number for axis in group]
            split = " ".join(f"S({a})" for a in reversed(numbers[1:]))
            defines[f"{name}_AXES(S, L)"] = f"{split} L({numbers[0]})" if numbers else ""
            defines[f"{name}_STRIDES(F)"] = " ".join(f"F({n}, {axis.number})" for axis in group for n in places)
        defines["STRIDES(F)"] = "ROW_STRIDES(F) KEPT_STRIDES(F)"
        if any_inner:
            defines["STRIDES(F)"] += "".join(f" F({n}, inner)" for n in places)
            kinds = [self.inputs[n].kind for n in places]
            if places == [0, 1]:
                for first, second in ((1, 1), (1, 0), (0, 1)):
                    defines[f"INPUTS_{first}{second}(F)"] = f"F(0, {kinds[0]}, {first}) F(1, {kinds[1]}, {second})"
            else:
                walks = " ".join(f"F({n}, {kind}, {int(n == places[0])})" for n, kind in zip(places, kinds))
                defines["INPUTS_FIRST(F)"], defines["FIRST_WALKS"] = walks, f"stride_{places[0]}_inner"
        defines["BODY"] = self.loop.assignments.c_text(self.numbers)
        for n in self.numbers:
            fold = self.loop.outputs[n].fold
            if fold:
                defines[f"COMBINE_{n}(a, b)"] = fold.combine.text
                defines[f"IDENTITY_{n}"] = fold.identity.text
        if partial:
            defines["PARTIAL"] = 1
        elif self.loop.alpha:
            defines["ALPHA"] = self.loop.alpha
        if self.loop.beta and not partial:
            defines["BETA"] = self.loop.beta
        return defines

    def arguments(
        self, rows: Sequence[Axis], kept: Sequence[Axis] = (), outputs: Mapping[int, Any] | None = None
    ) -> list[Any]:
        """Bind what PARAMETERS declares; `outputs` are given where they are partial."""
        bound: list[Any] = [operand.binding for operand in self.inputs.values()]
        for n in self.numbers:
            result = self.loop.outputs[n]
            if outputs is not None:
                bound += [outputs[n], Constant(np.int32(0))]
            else:
                bound += [result.binding, Accumulate(result.name) if result.name else Constant(np.int32(0))]
        bound += [Scalar(name, self.real) for name in self.loop.scalars]
        bound += [Constant(np.dtype(self.real).type(value)) for value in self.loop.constants.values()]
        rows, kept = self.shared(rows, 0, self.row_counts), self.shared(kept)
        bound += _ulongs(*(axis.size for axis in (*kept, *rows)))
        for group in (rows, kept):
            for axis in group:
                bound += _ulongs(*axis.strides)
        return bound

    def shared(self, group: Sequence[Axis], first: int = 0, counts: Sequence[int] = SHARED) -> Sequence[Axis]:
        """Return axes as kernels see them, numbered from `first` on.

        There are axes of size 1 in front of them, up to the next of `counts`, and strides of 0 are arguments, too:
        kernels then serve shapes and broadcasts of all kinds.
        """
        missing = next((count - len(group) for count in counts if count >= len(group)), 0)
        ones = [self.one] * missing
        return [replace(axis, number=first + number) for number, axis in enumerate((*ones, *group))]

    def launch(
        self, file: str, name: str, defines: dict[str, Any], size: int, local: int | None, arguments: list[Any]
    ) -> Launch:
        kernel = self.planner.kernel(file, name, {name.upper(): 1, **defines}, self.loop.dtype)
        if local:
            size = round_up(size, local)
        return Launch(kernel, (size,), (local,) if local else None, tuple(arguments), self.writes)

    # which kernel, and how the work is cut

    def launches(self) -> Launches:
        if self.loop.folded:
            return self.folds()
        if 0 in self.loop.shape:
            return Launches()
        # kernels that walk the innermost axis know no other strides
        if self.walked and self.is_cpu and self.inner.size >= self.lanes:
            return Launches([self.map_vectors()])
        if self.walked and not self.is_cpu and count(self.axes) > self.units * ITEMS_OF_ELEMENTS:
            return Launches([self.map_quads()])
        return Launches([self.map_elements()])

    def map_vectors(self) -> Launch:
        outer = self.axes[:-1]
        if not outer and not all(self.inner.strides):
            outer = (self.one,)  # one row, in the kernel of other broadcasts
        rows, length = count(outer), self.inner.size
        items = max(1, min(ITEMS_PER_UNIT[True] * self.units, rows * length // VALUES_PER_ITEM))
        pieces, rows_per_item = 1, ceil_div(rows, items)
        if rows < items:
            pieces = max(1, min(ceil_div(items, rows), length // (2 * self.lanes)))
        any_inner = bool(outer) and len(self.inputs) > 1
        inner_strides = self.inner.strides if any_inner else ()
        arguments = [*self.arguments(outer), *_ulongs(*inner_strides, rows, length, pieces, rows_per_item)]
        size = ceil_div(rows, rows_per_item) * pieces
        unit = 2 if any_inner else None
        defines = self.defines(outer, inner=self.inner, lanes=self.lanes, any_inner=any_inner, unit=unit)
        nbytes = rows * length * np.dtype(self.loop.dtype).itemsize * len(self.numbers)
        defines |= rows_past_caches(self.planner, nbytes, length if rows > 1 else self.lanes, self.lanes)
        return self.launch("pointwise/pointwise.cl", "pointwise_vectors", defines, size, 1, arguments)

    def map_quads(self) -> Launch:
        """Plan a GPU's kernel: four neighbouring elements at once, of one row where rows and strides allow it."""
        total = count(self.axes)
        flat, step = [True] * len(self.inputs), 1
        for axis in reversed(self.axes):
            flat = [is_flat and stride == step for is_flat, stride in zip(flat, axis.strides)]
            step *= axis.size
        outer, length = self.axes[:-1], self.inner.size
        past_caches = outgrows_caches(self.planner, total * np.dtype(self.loop.dtype).itemsize)
        unroll, group = max(1, MAP_READS // max(1, len(self.inputs))), GROUP
        if past_caches:
            unroll = MAP_READS_PAST[self.small]
        if all(flat):
            outer = ()
            defines, arguments = self.defines(outer, unit=FLAT), [*self.arguments(outer), *ints(0)]
            group //= unroll
        else:
            outer = outer or (self.one,)
            in_rows = length % QUAD == 0 and not any(
                stride % QUAD for axis in outer for stride, walks in zip(axis.strides, self.inner.strides) if walks
            )
            ways = [FLAT if f and not in_rows else walks for f, walks in zip(flat, self.inner.strides)]
            defines = {**self.defines(outer, unit=2), "BROADCASTS": 1}
            if not in_rows and length >= QUAD:
                defines["TWO_ROWS"] = 1
            arguments = [*self.arguments(outer), *ints(*ways, in_rows)]
        defines |= {"UNROLL": unroll, "GROUP": group}
        sizes = [*(axis.size for axis in self.shared(outer, 0, self.row_counts)), length]
        quick = total <= MOST_DIVIDED
        if quick:
            defines["QUICK"] = 1
        arguments += [divisor_argument(size if quick else 1) for size in sizes]
        size = ceil_div(total, QUAD * unroll * group) * group
        arguments += _ulongs(length, total)
        return self.launch("pointwise/gpu.cl", "pointwise_quads", defines, size, group, arguments)

    def map_elements(self) -> Launch:
        if not self.is_cpu:
            self.row_counts = SHARED_OF_FEW
        total = count(self.axes)
        arguments = [*self.arguments(self.axes), *_ulongs(total)]
        local = 64 if self.is_cpu else GROUP
        size = min(total, SPAN)
        return self.launch(
            "pointwise/pointwise.cl", "pointwise_elements", self.defines(self.axes), size, local, arguments
        )

    def folds(self) -> Launches:
        folded = [axis for axis in self.axes if axis.folded]
        kept = [axis for axis in self.axes if not axis.folded]
        if count(kept) == 0:
            return Launches()
        if self.walked and self.is_cpu and self.inner.size >= self.lanes and count(folded):
            return self.fold_rows(kept, folded[:-1]) if self.inner.folded else self.fold_columns(kept[:-1], folded)
        if self.walked and not self.is_cpu and self.inner.folded and count(folded) >= LEAST_OF_GROUPS:
            return self.fold_groups(kept, folded[:-1])
        return self.fold_elements(kept, folded)

    def fold_rows(self, kept: Sequence[Axis], rows: Sequence[Axis]) -> Launches:
        results, values = count(kept), count(rows) * self.inner.size
        target = ITEMS_PER_UNIT[True] * self.units
        parts = _parts(target, results, values // VALUES_PER_PART)
        pieces = max(1, min(ceil_div(parts, count(rows)), self.inner.size // (2 * self.lanes)))
        per_item = max(1, min(results // target, VALUES_PER_ITEM // values)) if parts == 1 else 1
        numbers = (results, per_item, count(rows), self.inner.size, pieces, parts)
        size = ceil_div(results, per_item) * parts
        return self.fold("reduce_rows", rows, kept, parts, size, 1, numbers, self.inner, self.lanes)

    def fold_columns(self, kept: Sequence[Axis], rows: Sequence[Axis]) -> Launches:
        vectors = count(kept) * ceil_div(self.inner.size, self.lanes)
        target = ITEMS_PER_UNIT[True] * self.units
        parts = _parts(target, vectors, count(rows) * self.lanes // VALUES_PER_PART)
        results = count(kept) * self.inner.size
        if outgrows_caches(self.planner, results * count(rows) * np.dtype(self.loop.dtype).itemsize):
            parts = max(parts, min(count(rows) // ROWS_PER_PART, MOST_PARTS))
        numbers = (results, self.inner.size, count(rows), parts)
        return self.fold("reduce_columns", rows, kept, parts, vectors * parts, 1, numbers, self.inner, self.lanes)

    def fold_staged(self, results: int) -> Launches:
        """Plan a fold of short rows, which all inputs have one after the other."""
        length = self.inner.size
        lanes = 1 << (ceil_div(length, STAGED_OF_LANE) - 1).bit_length()
        size = ceil_div(results, STAGED_GROUP // lanes) * STAGED_GROUP
        more = {"GROUP": STAGED_GROUP, "STAGES": ceil_div(STAGED_GROUP // lanes * length, QUAD * STAGED_GROUP)}
        defines = {**self.defines([self.one], [self.one], unit=1), **more}
        numbers = [*ints(lanes), Constant(np.uint32(results)), Constant(np.uint32(length))]
        arguments = [*self.arguments([self.one], [self.one]), *numbers]
        return Launches([self.launch("pointwise/reduce.cl", "reduce_staged", defines, size, STAGED_GROUP, arguments)])

    def fold_groups(self, kept: Sequence[Axis], rows: Sequence[Axis]) -> Launches:
        walks = self.inner.strides
        in_quads = self.inner.size % QUAD == 0 and not any(
            stride % QUAD for axis in (*kept, *rows) for stride, walk in zip(axis.strides, walks) if walk
        )
        wide = QUAD if in_quads else 1
        results, steps = count(kept), count(rows) * self.inner.size // wide
        contiguous = not rows and all(walks) and len(kept) == 1 and set(kept[0].strides) == {self.inner.size}
        short = self.inner.size <= STAGED_OF_LANE * STAGED_GROUP // QUAD and count(self.axes) < SMALL
        if contiguous and short and not in_quads and len(self.numbers) == 1 and results > GROUP * self.units:
            return self.fold_staged(results)
        target = GROUPS_PER_UNIT * self.units
        # no more parts than are busy at once: a rest of them would wait for all others
        parts = max(1, min(target // results, steps * wide // (16 * GROUP), MOST_PARTS))
        # where some inputs do not walk, one does not: which ones is an argument, so that one program serves all
        all_walk = all(walks)
        unroll = max(1, (READS_AHEAD[self.small] if in_quads else SINGLES_AHEAD) // max(1, len(walks) - (not all_walk)))
        lanes = GROUP
        while parts == 1 and lanes > FEWEST_LANES and lanes // 2 * unroll >= steps:
            lanes //= 2
        numbers = (results, count(rows), self.inner.size, parts)
        size = ceil_div(results * parts, GROUP // lanes) * GROUP
        first, unit = ints(*(() if all_walk else walks), lanes), 1 if all_walk else 2
        more = {"WIDE": wide, "UNROLL": unroll}
        rows, kept = rows or [self.one], kept or [self.one]
        return self.fold("reduce_groups", rows, kept, parts, size, GROUP, numbers, first=first, unit=unit, more=more)

    def fold_elements(self, kept: Sequence[Axis], rows: Sequence[Axis]) -> Launches:
        results, values = count(kept), count(rows)
        parts = _parts(ITEMS_PER_UNIT[self.is_cpu] * self.units, results, values // LEAST_PER_ITEM[self.is_cpu])
        local = None if self.is_cpu else 64
        if not self.is_cpu:
            rows, kept = rows or [self.one], kept or [self.one]
        return self.fold("reduce_elements", rows, kept, parts, results * parts, local, (results, values, parts))

    def fold(
        self,
        name: str,
        rows: Sequence[Axis],
        kept: Sequence[Axis],
        parts: int,
        size: int,
        local: int | None,
        numbers: Sequence[int],
        inner: Axis | None = None,
        lanes: int = 0,
        first: Sequence[Any] = (),
        unit: int | None = None,
        more: Mapping[str, int] | None = None,
    ) -> Launches:
        """Plan one launch, or with several parts a second one that folds them.

        The kernel takes arguments `first` before its `numbers`, and `more` macros; `unit` as of `defines`.
        """
        partial = parts > 1
        results = numbers[0]
        slot = _aligned(results * parts * self.itemsize)
        places = {n: Workspace(self.offset + i * slot, self.itemsize) for i, n in enumerate(self.numbers)}
        arguments = [*self.arguments(rows, kept, places if partial else None), *first, *_ulongs(*numbers)]
        defines = {**self.defines(rows, kept, inner, lanes, partial, unit=unit), **(more or {})}
        launch = self.launch("pointwise/reduce.cl", name, defines, size, local, arguments)
        if not partial:
            return Launches([launch])
        return Launches([launch, self.finish(places, results, parts)], self.offset + len(places) * slot)

    def finish(self, places: Mapping[int, Workspace], results: int, parts: int) -> Launch:
        """Plan the fold of the parts: a kernel whose only inputs are the parts, one per output."""
        defines = self.defines(())
        defines["INPUTS(F)"] = " ".join(f"F({n}, real, 0)" for n in self.numbers)
        bound: list[Any] = [places[n] for n in self.numbers]
        bound += self.arguments(())[len(self.inputs) :]
        bound += _ulongs(results, parts)
        if self.is_cpu or parts < 32:
            return self.launch("pointwise/reduce.cl", "reduce_finish", defines, results, 64, bound)
        defines["GROUP"] = 64
        return self.launch("pointwise/reduce.cl", "reduce_finish_groups", defines, results * 64, 64, bound)


def _parts(target: int, workers: int, most: int) -> int:
    """Return in how many parts each fold is cut so that about `target` workers are busy."""
    return max(1, min(ceil_div(target, workers), most, MOST_PARTS))


def _ulongs(*values: int) -> list[Any]:
    return [Constant(np.uint64(value)) for value in values]


def _aligned(nbytes: int) -> int:
    return round_up(nbytes, 64)
