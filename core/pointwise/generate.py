"""From a checked program and a loop to launches: chooses the kernel's shape and writes its macros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clgraft.core.plan import Accumulate, Constant, Launch, Scalar, Workspace
from clgraft.core.pointwise.expression import Program
from clgraft.core.pointwise.loop import Axis, Operand, Result, collapse, count

if TYPE_CHECKING:
    from clgraft.core.context import Context

GROUP = 256  # work-items per work-group on GPUs
ITEMS_PER_UNIT = {True: 4, False: 2048}  # parallel work wanted per compute unit: is_cpu -> work-items
VALUES_PER_ITEM = 8192  # a CPU's work-item is worth its start from about here on
VALUES_PER_PART = {True: 16384, False: 16 * GROUP}  # least values per part of one fold
MOST_PARTS = 1024
SPAN = 2**30  # the most work-items of one launch; longer loops stride
SMALL = 2**32 - SPAN  # so many positions are counted in 32 bits, a stride past the end included


@dataclass(frozen=True)
class Loop:
    """A program over a shape.

    Attributes
    ----------
    shape : tuple of int
        The broadcast shape.
    program : Program
    inputs : mapping of int to Operand
        x0, x1, ... by number; the ones that the wanted outputs do not read may be missing.
    outputs : mapping of int to Result
        The outputs to compute, by number. All of them have a fold or none.
    folded : tuple of int
        The axes that are folded.
    scalars : tuple of str
        Names that every run gives.
    constants : mapping of str to float
        Names whose values are known now but must not become part of the kernel's text.
    alpha, beta : str
        C text of the factors of value and old output; empty for 1 and 0.
    dtype : str
    """

    shape: tuple[int, ...]
    program: Program
    inputs: Mapping[int, Operand]
    outputs: Mapping[int, Result]
    folded: tuple[int, ...] = ()
    scalars: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    alpha: str = ""
    beta: str = ""
    dtype: str = "float32"


@dataclass
class Launches:
    """Launches with what they need of the workspace (they run in order and share it)."""

    items: list[Launch] = field(default_factory=list)
    workspace_bytes: int = 0


def generate(context: Context, loop: Loop, workspace_offset: int = 0) -> Launches:
    """Plan a loop.

    Parameters
    ----------
    context : Context
    loop : Loop
    workspace_offset : int
        Where the loop's own workspace may begin, in bytes; a multiple of 64.

    Returns
    -------
    Launches
        `workspace_bytes` counts from 0.
    """
    return _Generator(context, loop, workspace_offset).launches()


class _Generator:
    def __init__(self, context: Context, loop: Loop, workspace_offset: int) -> None:
        self.context, self.loop, self.offset = context, loop, workspace_offset
        self.numbers = tuple(sorted(loop.outputs))
        reads = loop.program.reads(self.numbers)
        self.inputs = {n: operand for n, operand in sorted(loop.inputs.items()) if f"x{n}" in reads}
        folded = [axis in loop.folded for axis in range(len(loop.shape))]
        self.axes = collapse(loop.shape, folded, [operand.strides for operand in self.inputs.values()])
        self.is_cpu = bool(context.device.is_cpu)
        self.units = int(context.device.compute_units)
        self.real = "float64" if loop.dtype == "float64" else "float32"
        self.itemsize = np.dtype(self.real).itemsize
        self.lanes = max(2, min(16, int(context.device.vector_width) * 4 // self.itemsize))
        self.writes = tuple(r.name for r in loop.outputs.values() if r.name)
        if len(self.writes) < len(self.numbers):
            self.writes = ()  # something else needs what this writes

    # what the kernels see

    def defines(
        self,
        rows: Sequence[Axis],
        kept: Sequence[Axis] = (),
        inner: Axis | None = None,
        partial: bool = False,
    ) -> dict[str, Any]:
        """Write the macros of one kernel; `inner` is the axis that vectors walk."""
        places = list(self.inputs)
        defines: dict[str, Any] = {}
        if inner is not None:
            defines["VL"] = self.lanes
        defines["INDEX"] = "uint" if count(self.axes) < SMALL else "ulong"
        defines["INPUTS(F)"] = " ".join(
            f"F({n}, {operand.kind}, {int(inner is not None and inner.strides[i] != 0)})"
            for i, (n, operand) in enumerate(self.inputs.items())
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
            defines[f"{name}_STRIDES(F)"] = " ".join(
                f"F({n}, {a})" for a in numbers for i, n in enumerate(places) if self.axes[a].strides[i]
            )
        defines["STRIDES(F)"] = "ROW_STRIDES(F) KEPT_STRIDES(F)"
        defines["BODY"] = self.loop.program.c_text(self.numbers)
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
        bound += _ulongs(*(axis.size for axis in (*kept, *rows)))
        for group in (rows, kept):
            for axis in group:
                bound += _ulongs(*(stride for stride in axis.strides if stride))
        return bound

    def launch(
        self, file: str, name: str, defines: dict[str, Any], size: int, local: int | None, arguments: list[Any]
    ) -> Launch:
        kernel = self.context.kernel(file, name, {name.upper(): 1, **defines}, self.loop.dtype)
        if local:
            size = -(-size // local) * local
        return Launch(kernel, (size,), (local,) if local else None, tuple(arguments), self.writes)

    # which kernel, and how the work is cut

    def launches(self) -> Launches:
        if self.loop.folded:
            return self.folds()
        if 0 in self.loop.shape:
            return Launches()
        inner, outer = self.axes[-1], self.axes[:-1]
        if self.is_cpu and inner.size >= self.lanes:
            return Launches([self.vector_map(inner, outer)])
        total = count(self.axes)
        local = 64 if self.is_cpu else GROUP
        arguments = [*self.arguments(self.axes), *_ulongs(total)]
        size = min(total, SPAN)
        return Launches(
            [self.launch("pointwise.cl", "pointwise_elements", self.defines(self.axes), size, local, arguments)]
        )

    def vector_map(self, inner: Axis, outer: Sequence[Axis]) -> Launch:
        rows, length = count(outer), inner.size
        items = max(1, min(ITEMS_PER_UNIT[True] * self.units, rows * length // VALUES_PER_ITEM))
        pieces, rows_per_item = 1, -(-rows // items)
        if rows < items:
            pieces = max(1, min(-(-items // rows), length // (2 * self.lanes)))
        arguments = [*self.arguments(outer), *_ulongs(rows, length, pieces, rows_per_item)]
        size = -(-rows // rows_per_item) * pieces
        return self.launch("pointwise.cl", "pointwise_vectors", self.defines(outer, inner=inner), size, 1, arguments)

    def folds(self) -> Launches:
        inner = self.axes[-1]
        folded = [axis for axis in self.axes if axis.folded]
        kept = [axis for axis in self.axes if not axis.folded]
        results, values = count(kept), count(folded)
        if not results:
            return Launches()
        vectors = self.is_cpu and inner.size >= self.lanes and values > 0
        target = ITEMS_PER_UNIT[self.is_cpu] * self.units
        by_groups = not self.is_cpu and inner.folded and values >= GROUP
        if by_groups:
            target = -(-target // GROUP) * 4
        workers = results
        if vectors and not inner.folded:
            workers = count(kept[:-1]) * -(-inner.size // self.lanes)
        least = VALUES_PER_PART[True] if self.is_cpu else VALUES_PER_PART[False] if by_groups else 64
        if vectors and not inner.folded:
            least = max(1, least // self.lanes)
        parts = max(1, min(-(-target // workers), values // least, MOST_PARTS))
        if vectors and inner.folded:
            cut = self.fold_rows(kept, folded[:-1], inner, results, values, parts, target)
        elif vectors:
            cut = self.fold_columns(kept[:-1], folded, inner, results, values, parts)
        else:
            cut = self.fold_elements(kept, folded, results, values, parts, by_groups)
        if parts == 1:
            return Launches([cut])
        size = results * parts * self.itemsize
        return Launches([cut, self.finish(results, parts)], self.offset + len(self.numbers) * _aligned(size))

    def partial(self, results: int, parts: int) -> dict[int, Any]:
        """Bind the workspace of the parts."""
        size = _aligned(results * parts * self.itemsize)
        return {n: Workspace(self.offset + i * size, self.itemsize) for i, n in enumerate(self.numbers)}

    def fold(
        self, name: str, rows: Sequence[Axis], kept: Sequence[Axis], inner: Axis | None, results: int, parts: int,
        size: int, local: int | None, numbers: Sequence[int],
    ) -> Launch:  # fmt: skip
        partial = parts > 1
        outputs = self.partial(results, parts) if partial else None
        arguments = [*self.arguments(rows, kept, outputs), *_ulongs(*numbers)]
        defines = self.defines(rows, kept, inner, partial)
        return self.launch("pointwise_reduce.cl", name, defines, size, local, arguments)

    def fold_rows(
        self,
        kept: Sequence[Axis],
        rows: Sequence[Axis],
        inner: Axis,
        results: int,
        values: int,
        parts: int,
        target: int,
    ) -> Launch:
        count_rows = count(rows)
        pieces = max(1, min(-(-parts // count_rows), inner.size // (2 * self.lanes)))
        per_item = max(1, min(results // target, VALUES_PER_ITEM // values)) if parts == 1 else 1
        size = -(-results // per_item) * parts
        numbers = (results, per_item, count_rows, inner.size, pieces, parts)
        return self.fold("reduce_rows", rows, kept, inner, results, parts, size, 1, numbers)

    def fold_columns(
        self, kept: Sequence[Axis], rows: Sequence[Axis], inner: Axis, results: int, values: int, parts: int
    ) -> Launch:
        size = count(kept) * parts * -(-inner.size // self.lanes)
        return self.fold(
            "reduce_columns", rows, kept, inner, results, parts, size, 1, (results, inner.size, values, parts)
        )

    def fold_elements(
        self, kept: Sequence[Axis], rows: Sequence[Axis], results: int, values: int, parts: int, by_groups: bool
    ) -> Launch:
        if by_groups:
            size = results * parts * GROUP
            return self.fold("reduce_groups", rows, kept, None, results, parts, size, GROUP, (results, values, parts))
        local = None if self.is_cpu else 64
        return self.fold(
            "reduce_elements", rows, kept, None, results, parts, results * parts, local, (results, values, parts)
        )

    def finish(self, results: int, parts: int) -> Launch:
        """Plan the fold of the parts: a kernel whose only inputs are the parts, one per output."""
        partial = self.partial(results, parts)
        defines = self.defines((), ())
        defines["INPUTS(F)"] = " ".join(f"F({n}, real, 0)" for n in self.numbers)
        bound: list[Any] = [partial[n] for n in self.numbers]
        bound += self.arguments(())[len(self.inputs) :]
        bound += _ulongs(results, parts)
        return self.launch("pointwise_reduce.cl", "reduce_finish", defines, results, 64, bound)


def _ulongs(*values: int) -> list[Any]:
    return [Constant(np.uint64(value)) for value in values]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
