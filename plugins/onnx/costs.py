"""What folding a node would cost, known before it is done: elements of the result and operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clgraft.plugins.onnx.nodes import OnnxNode
from clgraft.plugins.onnx.tensors import dense_bytes

Arrays = Sequence[Any]  # of numpy.ndarray or None
ITEM = 8  # bytes of an element, at most
PYTHON = 500  # operations on elements in the time of one turn of a loop in Python
# onnx's reference implementation of these loops over elements in Python
LOOPED = ("GatherND", "MelWeightMatrix", "Scatter", "ScatterElements", "ScatterND")


def cost(node: OnnxNode, arrays: Arrays) -> tuple[float, float]:
    """Return at most how many elements of 8 bytes the results of a node have, and how many operations they take.

    Parameters
    ----------
    node : OnnxNode
    arrays : sequence of numpy.ndarray or None
        The inputs.
    """
    given = [array for array in arrays if array is not None]
    read = sum(array.size for array in given)
    if node.operator in _SIZES:
        made: float = _SIZES[node.operator](node, arrays)
    else:  # element by element with broadcasting, or no more than what is read
        made = max(read, joint([array.shape for array in given]))
    operations = read + made
    if node.operator in ("MatMul", "Gemm"):
        operations += made * _sides(node, arrays)[1]
    return made, operations * (PYTHON if node.operator in LOOPED else 1)


def joint(shapes: Sequence[Sequence[int]]) -> int:
    """Return at most how many elements shapes broadcast to."""
    ndim = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*padded))


def _numbers(array: Any) -> list[int]:
    return [int(number) for number in np.asarray(array).reshape(-1)]


def _first(array: Any) -> float:
    return float(np.asarray(array).reshape(-1)[0])


def _constant(node: OnnxNode, arrays: Arrays) -> float:
    sparse = node.get("sparse_value")
    if sparse is not None:
        return dense_bytes(sparse) / ITEM
    return max((math.prod(attribute.t.dims) for attribute in node.proto.attribute), default=0)


def _filled(node: OnnxNode, arrays: Arrays) -> float:
    itemsize = node.get("value", np.zeros(1, np.float32)).itemsize
    return math.prod(max(size, 0) for size in _numbers(arrays[0])) * itemsize / ITEM


def _expanded(node: OnnxNode, arrays: Arrays) -> float:
    return joint([arrays[0].shape, [max(size, 0) for size in _numbers(arrays[1])]])


def _tiled(node: OnnxNode, arrays: Arrays) -> float:
    return float(arrays[0].size) * math.prod(max(times, 0) for times in _numbers(arrays[1]))


def _range(node: OnnxNode, arrays: Arrays) -> float:
    start, limit, delta = (_first(array) for array in arrays)
    return 2 * max((limit - start) / delta, 0.0) if delta else math.inf  # computed in one type, kept in another


def _one_hot(node: OnnxNode, arrays: Arrays) -> float:
    return arrays[0].size * _first(arrays[1])


def _padded(node: OnnxNode, arrays: Arrays) -> float:
    shape = arrays[0].shape
    amounts = node.get("pads") if len(arrays) < 2 else _numbers(arrays[1])
    axes = _numbers(arrays[3]) if len(arrays) > 3 and arrays[3] is not None else range(len(shape))
    sizes = list(shape)
    for i, axis in enumerate(axes):
        sizes[axis] += amounts[i] + amounts[len(amounts) // 2 + i]
    return math.prod(max(size, 0) for size in sizes)


def _gathered(node: OnnxNode, arrays: Arrays) -> float:
    x, index = arrays
    axis = node.get("axis", 0)
    return index.size * math.prod(size for i, size in enumerate(x.shape) if i != axis % max(x.ndim, 1))


def _gathered_slices(node: OnnxNode, arrays: Arrays) -> float:
    x, index = arrays
    return math.prod(index.shape[:-1]) * math.prod(x.shape[int(node.get("batch_dims", 0)) + index.shape[-1] :])


def _sides(node: OnnxNode, arrays: Arrays) -> tuple[int, int, int]:
    """Return the rows, the sums' length and the columns of a product of matrices."""
    a, b = (array.shape for array in arrays[:2])
    (rows, inner), columns = (1, 1, *a)[-2:], b[-1] if len(b) > 1 else 1
    if node.get("transA", 0):
        rows, inner = inner, rows
    return rows, inner, b[-2] if node.get("transB", 0) else columns


def _product(node: OnnxNode, arrays: Arrays) -> float:
    rows, _, columns = _sides(node, arrays)
    return joint([array.shape[:-2] for array in arrays[:2]]) * rows * columns


def _window(node: OnnxNode, arrays: Arrays) -> float:
    return max(_first(arrays[0]), 0.0)


def _mel(node: OnnxNode, arrays: Arrays) -> float:
    return max(_first(arrays[0]), 0.0) * (max(_first(arrays[1]), 0.0) + 1)


_SIZES: dict[str, Callable[[OnnxNode, Arrays], float]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Tile": _tiled,
    "Range": _range,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Gather": _gathered,
    "GatherND": _gathered_slices,
    "MatMul": _product,
    "Gemm": _product,
    "HannWindow": _window,
    "HammingWindow": _window,
    "BlackmanWindow": _window,
    "MelWeightMatrix": _mel,
    "NonZero": lambda node, arrays: arrays[0].size * max(arrays[0].ndim, 1),
}
