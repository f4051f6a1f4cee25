"""Nodes whose inputs are known: computed on the host by onnx's reference implementation, which is NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from clgraft.plugins.onnx.errors import OnnxError
from clgraft.plugins.onnx.nodes import DEFAULT_DOMAINS, Node
from clgraft.plugins.onnx.values import DTYPES, Value

SMALL = 4096  # real numbers that are folded; more of them are the device's work
LARGEST = 2**32  # bytes of a result
# moved, not computed: on the host at any size
MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Constant")
SHAPES = ("Shape", "Size")
RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
CONTROL = ("If", "Loop", "Scan")


def serves(node: Node, values: Sequence[Value]) -> bool:
    """Return whether a node is folded."""
    if node.operator in SHAPES and values:
        return True
    if node.operator in CONTROL or node.operator in RANDOM or node.operator == "Dropout":
        return False
    if any(value.array is None for value in values):
        return False
    if node.operator in MOVES or node.operator == "ConstantOfShape":
        return True
    return not any(value.is_real and value.size > SMALL for value in values)


def fold(node: Node, values: Sequence[Value | None]) -> list[np.ndarray]:
    """Return the outputs of a node.

    Raises
    ------
    OnnxError
        If its inputs do not fit it, or the result would be too large.
    """
    if node.operator in SHAPES and values[0] is not None:
        return [_shape(node, values[0])]
    arrays = [None if value is None else value.array for value in values]
    _expect_possible(node, arrays)
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


def _types(feeds: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, array.dtype.str, array.shape) for name, array in feeds.items())


@lru_cache(maxsize=1024)
def _evaluator(proto: bytes, opset: int, names: tuple[str, ...], types: tuple[Any, ...]) -> Any:
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto()
    node.ParseFromString(proto)
    del node.input[:]
    node.input.extend(names)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, dtype, shape in types
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "folded", inputs, outputs)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def _shape(node: Node, value: Value) -> np.ndarray:
    if node.operator == "Size":
        return np.array(value.size, np.int64)
    start, end = node.get("start", 0), node.get("end")
    return np.array(value.shape[slice(start, end)], np.int64)


def _expect_possible(node: Node, arrays: Sequence[Any]) -> None:
    """Refuse results that are larger than memory, before they are made."""
    operator = node.operator
    if operator in ("ConstantOfShape", "Expand", "Tile"):
        sizes = np.asarray(arrays[-1]).astype(object).reshape(-1)
        count: float = math.prod(max(int(size), 0) for size in sizes)
        count *= arrays[0].size if operator == "Tile" else 1
    elif operator == "Range":
        start, limit, delta = (float(np.asarray(array).reshape(-1)[0]) for array in arrays)
        count = (limit - start) / delta if delta else math.inf
    elif operator == "OneHot":
        count = arrays[0].size * int(np.asarray(arrays[1]).reshape(-1)[0])
    elif operator == "Pad" and len(arrays) > 1:
        pads = np.abs(np.asarray(arrays[1]).astype(object))
        count = math.prod(size + int(max(pads, default=0)) * 2 for size in arrays[0].shape)
    else:
        return
    if not count * 8 <= LARGEST:
        raise OnnxError(f"[onnx] got {node} with {count} elements, expected at most {LARGEST // 8}")


def in_default_domain(proto: onnx.NodeProto) -> bool:
    """Return whether a node's operator is one of ONNX's own."""
    return proto.domain in DEFAULT_DOMAINS
