"""The loop under every generated kernel: axes, strides, which axes are folded, and which of them are really one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clgraft.core.operators.pointwise.expression import Assignments, Term


@dataclass(frozen=True)
class Operand:
    """An input of a loop.

    Attributes
    ----------
    binding : plan.Buffer or plan.Workspace
    strides : tuple of int
        Elements per step of each axis of the loop; 0 where the input is broadcast.
    kind : str
        ``stored`` (the problem's dtype) or ``real`` (the arithmetic type: parts of the workspace, and arguments of
        float32 where the dtype has 16 bits).
    """

    binding: Any
    strides: tuple[int, ...]
    kind: str = "stored"


@dataclass(frozen=True)
class Fold:
    """How values become one: C text of the fold of ``a`` and ``b``, and of its neutral element."""

    combine: Term
    identity: Term


@dataclass(frozen=True)
class Result:
    """An output of a loop, contiguous over the axes that are kept.

    Attributes
    ----------
    binding : plan.Buffer or plan.Workspace
    name : str
        The problem's argument, whose write mode is kept; empty for the workspace, which is overwritten.
    fold : Fold, optional
        None where the loop folds no axis.
    kind : str
        As of `Operand`.
    """

    binding: Any
    name: str = ""
    fold: Fold | None = None
    kind: str = "stored"


@dataclass(frozen=True)
class Loop:
    """Assignments over a shape.

    Attributes
    ----------
    shape : tuple of int
        The broadcast shape.
    assignments : Assignments
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
    assignments: Assignments
    inputs: Mapping[int, Operand]
    outputs: Mapping[int, Result]
    folded: tuple[int, ...] = ()
    scalars: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    alpha: str = ""
    beta: str = ""
    dtype: str = "float32"


def broadcast_strides(shape: Sequence[int], common: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array of `shape` over the axes of `common`, by numpy's rules."""
    strides = [0] * len(common)
    step = 1
    for back in range(1, len(shape) + 1):
        size = shape[-back]
        if size != 1:
            strides[-back] = step
        step *= size
    return tuple(strides)


@dataclass(frozen=True)
class Axis:
    """One axis of a loop: its size, whether it is folded, each input's stride, and its number among the axes."""

    size: int
    folded: bool
    strides: tuple[int, ...]
    number: int = 0


def collapse(shape: Sequence[int], folded: Sequence[bool], strides: Sequence[Sequence[int]]) -> tuple[Axis, ...]:
    """Drop axes of size 1 and join neighbours that every input walks as one; outermost first, at least one axis.

    Parameters
    ----------
    shape, folded : sequences
        Of every axis.
    strides : sequence of sequences
        Of every input.
    """
    axes: list[Axis] = []
    for place, size in enumerate(shape):
        if size == 1:
            continue
        axis = Axis(size, folded[place], tuple(s[place] for s in strides))
        if axes and axes[-1].folded == axis.folded:
            outer = axes[-1]
            if all(a == b * size for a, b in zip(outer.strides, axis.strides)):
                axes[-1] = Axis(outer.size * size, axis.folded, axis.strides)
                continue
        axes.append(axis)
    axes = axes or [Axis(1, False, (0,) * len(strides))]
    return tuple(replace(axis, number=number) for number, axis in enumerate(axes))


def count(axes: Sequence[Axis]) -> int:
    """Return the number of positions on some axes."""
    return math.prod(axis.size for axis in axes)
