"""Nodes whose inputs are known: computed on the host by onnx's reference implementation, which is NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from clgraft.plugins.onnx.costs import ITEM, cost
from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.limits import Budget
from clgraft.plugins.onnx.nodes import OnnxNode
from clgraft.plugins.onnx.tensors import Reader
from clgraft.plugins.onnx.values import DTYPES, OnnxValue

SMALL = 4096  # real numbers that are folded; more of them are the device's work
# moved, not computed: on the host at any size
MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Constant")
SHAPES = ("Shape", "Size")
RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
CONTROL = ("If", "Loop", "Scan")
VIEWS = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")  # of the same elements
# the device's work at any size: their attributes set how large they get, and onnx computes them in Python
DEVICE = frozenset(
    (
        *("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv", "Col2Im", "MaxUnpool", "LRN"),
        *("AveragePool", "LpPool", "MaxPool", "Resize", "Upsample", "GridSample", "RoiAlign", "NonMaxSuppression"),
        *("GRU", "LSTM", "RNN", "DFT", "STFT", "Einsum", "MatMulInteger", "QLinearMatMul"),
    )
)


def serves(node: OnnxNode, values: Sequence[OnnxValue]) -> bool:
    """Return whether a node is folded."""
    if node.operator in SHAPES and values:
        return True
    if node.operator in (*CONTROL, *RANDOM, *DEVICE, "Dropout"):
        return False
    if any(value.array is None for value in values):
        return False
    if node.operator in MOVES or node.operator == "ConstantOfShape":
        return True
    return not any(value.is_real and value.size > SMALL for value in values)


def fold(node: OnnxNode, values: Sequence[OnnxValue | None], budget: Budget) -> list[np.ndarray]:
    """Return the outputs of a node.

    Raises
    ------
    OnnxError
        If its inputs do not fit it, or it exceeds the budget.
    """
    if node.operator in SHAPES and values[0] is not None:
        return [_shape(node, values[0])]
    arrays = [None if value is None else value.array for value in values]
    if node.operator not in VIEWS:
        made, operations = cost(node, arrays)
        budget.expect("bytes", ITEM * made, node)
        budget.spend("operations", operations, node)
    return _computed(node, arrays)


def _computed(node: OnnxNode, arrays: Sequence[Any]) -> list[np.ndarray]:
    if node.operator == "Constant":
        return [_constant(node)]
    if node.operator == "ConstantOfShape":
        fill = node.get("value", np.zeros(1, np.float32))
        return [np.full(tuple(int(size) for size in np.asarray(arrays[0])), fill.reshape(-1)[0], fill.dtype)]
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
    feeds = {name: array for name, array in zip(names, arrays) if array is not None}
    try:
        with np.errstate(all="ignore"):
            results = _evaluator(node.proto.SerializeToString(), node.opset, tuple(names), _types(feeds)).run(
                None, feeds
            )
    except Exception as error:  # whatever the reference implementation raises for inputs that do not fit
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise OnnxError(f"[onnx] got {node}, which onnx cannot compute ({reason})") from None
    found = [np.asarray(result) for result in results]
    for array in found:
        if array.dtype.name not in DTYPES:
            raise node.refuse(f"type {array.dtype.name}")
    return found


def _constant(node: OnnxNode) -> np.ndarray:
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, dtype in kinds.items():
        if node.has(name):
            return np.array(node.get(name), dtype)
    if node.has("sparse_value"):
        return Reader().read_sparse(node.get("sparse_value"))
    node.expect(node.has("value"), "a text")
    return np.asarray(node.get("value"))


def _types(feeds: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, array.dtype, array.shape) for name, array in feeds.items())


@lru_cache(maxsize=1024)
def _evaluator(proto: bytes, opset: int, names: tuple[str, ...], types: tuple[Any, ...]) -> Any:
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto()
    node.ParseFromString(proto)
    del node.input[:]
    node.input.extend(names)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
        for name, dtype, shape in types
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "folded", inputs, outputs)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def _shape(node: OnnxNode, value: OnnxValue) -> np.ndarray:
    if node.operator == "Size":
        return np.array(value.size, np.int64)
    start, end = node.get("start", 0), node.get("end")
    return np.array(value.shape[slice(start, end)], np.int64)
