"""Collects the problems of a region, and the table of what each operator of PyTorch becomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clgraft.core.graph import GraphBuilder
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.products import Matrix
from clgraft.core.nn.reductions import Fold, by_fold, kept_shape
from clgraft.plugins.torch.lowering.values import NEW, NotLowered, Operand, stored, widest
from clgraft.plugins.torch.orders import Order

Lowering = Callable[..., Any]

# operator of PyTorch (`aten` overload) -> function of a builder and the call's arguments, which returns operands
TABLE: dict[Any, Lowering] = {}


def lowers(*operators: Any) -> Callable[[Lowering], Lowering]:
    """Return a decorator that enters a function into the table."""

    def enter(function: Lowering) -> Lowering:
        for operator in operators:
            TABLE[operator] = function
        return function

    return enter


class Builder:
    """Adds nodes to a graph.

    Attributes
    ----------
    nn : Build
        The same graph, for functions of `clgraft.core.nn`.
    constants : dict of str to numpy.ndarray
        Inputs of the graph that never change.
    """

    def __init__(self) -> None:
        self.graph = GraphBuilder()
        self.nn = Build(self.graph)
        self.constants = self.nn.constants

    def input(self, name: str, shape: Sequence[int], dtype: str, order: Order = ()) -> Operand:
        """Add an input; `order` has its axes as they lie in memory, where they do not lie as PyTorch sees them."""
        if not order:
            return stored(self.graph.input(name, shape, dtype), shape, dtype)
        return self.input(name, [shape[axis] for axis in order], dtype).permuted(moves.inverse_order(order))

    def filled(self, shape: Sequence[int], value: float, dtype: str) -> Operand:
        """Return a constant of one number; it is stored once and repeated."""
        found = self.nn.filled((1,), value, dtype)
        return Operand(found.name, (1,), (NEW,) * len(shape), tuple(shape), dtype)

    def given(self, operand: Operand, dtype: str = "", shape: Sequence[int] | None = None) -> Tensor:
        """Return an operand for a function of `clgraft.core.nn`, in a dtype and a shape with as many elements."""
        found = self.cast(operand, dtype or operand.dtype)
        found = self.stored(found if shape is None else self.reshaped(found, shape))
        return Tensor(found.name, found.shape, found.dtype)

    def matrix(self, operand: Operand) -> Matrix:
        """Return matrices, in the last two axes, for a function of `clgraft.core.nn`: transposed ones as they lie."""
        last = len(operand.shape) - 1
        swapped = operand.permuted((*range(last - 1), last, last - 1))
        turned = not operand.contiguous and swapped.contiguous
        return Matrix(self.given(swapped if turned else operand), turned)

    def broadcasting(self, operand: Operand) -> Tensor:
        """Return an operand for a function of `clgraft.core.nn` that broadcasts it, without what only repeats."""
        ready = operand if operand.ordered else self.stored(operand)
        return Tensor(ready.name, ready.aligned, ready.dtype)

    def taken(self, tensor: Tensor | None, shape: Sequence[int] | None = None) -> Any:
        """Return what a function of `clgraft.core.nn` has computed, if anything, as PyTorch sees it."""
        return None if tensor is None else stored(tensor.name, tensor.shape if shape is None else shape, tensor.dtype)

    def cast(self, operand: Operand, dtype: str) -> Operand:
        """Return the operand with its elements in a dtype."""
        if operand.dtype == dtype:
            return operand
        found = self.nn.cast(Tensor(operand.name, operand.stored, operand.dtype), dtype)
        return replace(operand, name=found.name, dtype=dtype)

    def stored(self, operand: Operand) -> Operand:
        """Return the operand with its elements in memory as PyTorch sees them."""
        if operand.contiguous:
            return stored(operand.name, operand.shape, operand.dtype)
        used = [axis for axis in operand.axes if axis != NEW]
        found = Tensor(operand.name, operand.stored, operand.dtype)
        if used != sorted(used):
            order = (*used, *(axis for axis in range(len(operand.stored)) if axis not in used))
            found = moves.transposed(self.nn, found, order)
        if operand.aligned != operand.shape:
            found = moves.broadcast(self.nn, self.nn.reshape(found, operand.aligned), operand.shape)
        return stored(found.name, operand.shape, found.dtype)

    def reshaped(self, operand: Operand, shape: Sequence[int]) -> Operand:
        """Return the operand in another shape; one size may be -1."""
        sizes = moves.filled_up(shape, operand.size)
        if math.prod(sizes) != operand.size:
            raise NotLowered(f"[torch] got shape {operand.shape} to view as {tuple(shape)}, expected as many elements")
        if sizes == operand.shape:
            return operand
        return stored(self.stored(operand).name, sizes, operand.dtype)

    def pointwise(
        self,
        text: str,
        operands: Sequence[Operand],
        scalars: Mapping[str, float] | None = None,
        outputs: int = 1,
    ) -> tuple[Operand, ...]:
        """Add an expression over x0, x1, ..., which broadcast; return y0, y1, ...

        What only repeats is computed once. The results have the widest dtype of the operands.
        """
        dtype = widest(*operands)
        operands = [self.cast(operand, dtype) for operand in operands]
        ndim = max(len(operand.shape) for operand in operands)
        seen = [operand.expanded((1,) * (ndim - len(operand.shape)) + operand.shape) for operand in operands]
        shape = np.broadcast_shapes(*(operand.shape for operand in seen))
        ready = [operand if operand.ordered else self.stored(operand) for operand in seen]
        common = np.broadcast_shapes(*(operand.aligned for operand in ready))
        tensors = [Tensor(operand.name, operand.aligned, dtype) for operand in ready]
        found = self.nn.pointwise(text, tensors, dict(scalars or {}))
        return tuple(Operand(y.name, common, tuple(range(ndim)), shape, dtype) for y in found[:outputs])

    def reduced(self, fold: Fold, operands: Sequence[Operand], axes: Sequence[int], keep: bool) -> Operand:
        """Add a reduction of the elements of operands of one shape over some axes."""
        shape, dtype = operands[0].shape, widest(*operands)
        y = by_fold(self.nn, fold, [self.given(operand, dtype) for operand in operands], axes)
        return stored(y.name, kept_shape(shape, axes, keep), dtype)
