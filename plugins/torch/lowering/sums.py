"""Reductions along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from clgraft.core.nn.reductions import FOLDS
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import DTYPES, Operand, axis_of

aten = torch.ops.aten


def _axes(x: Operand, axes: Sequence[int] | None) -> list[int]:
    """Return the reduced axes; none given means all."""
    return sorted({axis_of(axis, len(x.shape)) for axis in axes or range(len(x.shape))})


def _typed(build: Builder, x: Operand, dtype: Any) -> Operand:
    """Return x in the dtype that a call asks for; none given means its own."""
    return x if dtype is None else build.cast(x, DTYPES[dtype])


@lowers(aten.sum.dim_IntList)
def sum_(build: Builder, x: Operand, axes: Sequence[int] | None, keep: bool = False, dtype: Any = None) -> Operand:
    """Return the sum along some axes."""
    return build.reduced(FOLDS["sum"], [_typed(build, x, dtype)], _axes(x, axes), keep)


@lowers(aten.sum.default)
def sum_all(build: Builder, x: Operand, dtype: Any = None) -> Operand:
    """Return the sum of all elements."""
    return build.reduced(FOLDS["sum"], [_typed(build, x, dtype)], _axes(x, None), False)


@lowers(aten.mean.dim)
def mean(build: Builder, x: Operand, axes: Sequence[int] | None, keep: bool = False, dtype: Any = None) -> Operand:
    """Return the mean along some axes."""
    return build.reduced(FOLDS["mean"], [_typed(build, x, dtype)], _axes(x, axes), keep)


@lowers(aten.mean.default)
def mean_all(build: Builder, x: Operand, dtype: Any = None) -> Operand:
    """Return the mean of all elements."""
    return mean(build, x, None, False, dtype)


@lowers(aten.amax.default)
def amax(build: Builder, x: Operand, axes: Sequence[int] = (), keep: bool = False) -> Operand:
    """Return the maximum along some axes."""
    return build.reduced(FOLDS["max"], [x], _axes(x, axes), keep)


@lowers(aten.amin.default)
def amin(build: Builder, x: Operand, axes: Sequence[int] = (), keep: bool = False) -> Operand:
    """Return the minimum along some axes."""
    return build.reduced(FOLDS["min"], [x], _axes(x, axes), keep)
