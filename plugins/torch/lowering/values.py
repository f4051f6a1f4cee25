"""Values of a graph as PyTorch sees them: strided views that become memory only where a problem needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clgraft.core import ProblemError
from clgraft.core.problem import DTYPES as CORE_DTYPES
from clgraft.core.problem import SMALL, in_numpy

DTYPES = {getattr(torch, dtype): dtype for dtype in CORE_DTYPES if in_numpy(dtype)}
WIDTH = (*SMALL, "float32", "float64")

NEW = -1  # an axis that the stored array lacks


class NotLowered(ProblemError):
    """A call that the core's problems do not cover; PyTorch computes it."""


@dataclass(frozen=True)
class Operand:
    """A value of a graph, seen with its axes in another order or repeated along some.

    Attributes
    ----------
    name : str
        The stored value.
    stored : tuple of int
        Its shape.
    axes : tuple of int
        For each axis that PyTorch sees, the stored axis; `NEW` for one that only repeats. Every stored axis of more
        than one element is among them.
    shape : tuple of int
        What PyTorch sees; a size that differs from the stored one repeats a single element.
    dtype : str
    """

    name: str
    stored: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements that PyTorch sees."""
        return math.prod(self.shape)

    @property
    def ordered(self) -> bool:
        """Whether the axes that are stored are in the stored order."""
        used = [axis for axis in self.axes if axis != NEW]
        return used == sorted(used)

    @property
    def aligned(self) -> tuple[int, ...]:
        """The shape with 1 along repeated axes."""
        return tuple(1 if axis == NEW else self.stored[axis] for axis in self.axes)

    @property
    def contiguous(self) -> bool:
        """Whether the stored elements in their order are those that PyTorch sees."""
        return self.ordered and self.aligned == self.shape

    def permuted(self, order: Sequence[int]) -> Operand:
        """Return the same value with its axes in another order."""
        axes = tuple(self.axes[i] for i in order)
        return Operand(self.name, self.stored, axes, tuple(self.shape[i] for i in order), self.dtype)

    def expanded(self, shape: Sequence[int]) -> Operand:
        """Return the value repeated to a shape; -1 keeps a size, as in PyTorch."""
        new = len(shape) - len(self.shape)
        sizes = tuple(self.shape[i - new] if size == -1 else size for i, size in enumerate(shape))
        for before, after in zip(self.shape, sizes[new:]):
            if before not in (1, after):
                raise NotLowered(f"[torch] got shape {self.shape} to expand to {tuple(shape)}, expected sizes of 1")
        return Operand(self.name, self.stored, (NEW,) * new + self.axes, sizes, self.dtype)


def stored(name: str, shape: Sequence[int], dtype: str) -> Operand:
    """Return the operand of a value that is stored as it is seen."""
    shape = tuple(shape)
    return Operand(name, shape, tuple(range(len(shape))), shape, dtype)


def widest(*operands: Operand | None) -> str:
    """Return the dtype in which values of several dtypes are computed together."""
    dtypes = {operand.dtype for operand in operands if operand is not None}
    return "float32" if dtypes == set(SMALL) else max(dtypes, key=WIDTH.index)


def axis_of(axis: int, ndim: int) -> int:
    """Return an axis counted from the front."""
    if not -max(ndim, 1) <= axis < max(ndim, 1):
        raise NotLowered(f"[torch] got axis {axis}, expected one of {ndim}")
    return axis % max(ndim, 1)
