"""Small models, made in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

IR = 9


def tensor(name: str, dtype: Any, shape: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    """Return an input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[int | str] | None]],
    outputs: Mapping[str, tuple[Any, Sequence[int | str] | None]],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of nodes, with types and shapes of its inputs and outputs by name."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [tensor(name, *kind) for name, kind in inputs.items()],
        [tensor(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names stand between spaces, and ``_`` is left out."""
    names = ([("" if name == "_" else name) for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(operator, *names, name=f"{operator}_{outputs.split()[0]}", **attributes)


def small_net(batch: int | str = "n") -> onnx.ModelProto:
    """Return a net of convolution, batch norm, pooling, a reshape that is computed, and a classifier."""
    rng = np.random.default_rng(3)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    weights = {
        **{"w": random(8, 3, 3, 3), "b": random(8), "gamma": 1 + random(8), "beta": random(8), "mean": random(8)},
        **{"var": 1 + random(8) ** 2, "dense": random(5, 8 * 4 * 4), "bias": random(5)},
        **{"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)},
    }
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "c gamma beta mean var", "n1"),
        node("Relu", "n1", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p", "shape"),
        node("Gather", "shape zero", "count"),
        node("Concat", "count rest", "flat", axis=0),
        node("Reshape", "p flat", "f"),
        node("Gemm", "f dense bias", "g", transB=1),
        node("Softmax", "g", "y", axis=-1),
    ]
    return model(nodes, {"x": (np.float32, [batch, 3, 16, 16])}, {"y": (np.float32, [batch, 5])}, weights)
