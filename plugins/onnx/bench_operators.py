"""ONNX Runtime's and OpenVINO's CPU operators, each as a model of one node, against our core without an adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from clgraft.core import BatchNormProblem, ConvProblem, PoolProblem
from clgraft.core.problem.layout import LAST
from clgraft.plugins.command_line.bench import core_operators
from clgraft.plugins.command_line.bench.cases import Case, Element
from clgraft.plugins.command_line.bench.peers import NotServed, Side, operands
from clgraft.plugins.onnx.bench_runtimes import RUNTIMES

MODE = "each operator as a model of one node, forward; ours without an adapter"

FUNCTIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "sum": "Sum"}


def sides(case: Case, peer: str = "onnxruntime") -> dict[str, Side]:
    """Return both sides of a case, forward only; the peer is one of `bench_runtimes.RUNTIMES`."""
    work = case.work
    names, arrays = operands(work)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, arrays[name].shape) for name in names]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([_node(work, names)], "operator", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    run = RUNTIMES[peer](model)
    given = {name: arrays[name] for name in names}
    kept: dict[str, np.ndarray] = {}

    def forward() -> None:
        kept["y"] = run(given)[0]

    forward()
    ours = core_operators.side(case, arrays)
    return {
        "native": Side(forward, None, lambda: [np.array(kept["y"])]),
        "clgraft": Side(ours.forward, None, lambda: ours.results()[:1]),
    }


def _node(work: Any, inputs: list[str]) -> onnx.NodeProto:
    if isinstance(work, Element) and work.function in FUNCTIONS:
        return helper.make_node(FUNCTIONS[work.function], inputs, ["y"])
    if isinstance(work, BatchNormProblem) or not isinstance(work, (ConvProblem, PoolProblem)):
        raise NotServed(f"ONNX has no {work} for inference")
    if work.layout == LAST:
        raise NotServed("ONNX has no channels last")
    windows = {
        "kernel_shape": work.kernel,
        "strides": work.stride,
        "pads": (*work.pad_begin, *work.pad_end),
    }
    if isinstance(work, ConvProblem):
        return helper.make_node("Conv", inputs, ["y"], group=work.groups, dilations=work.dilate, **windows)
    if work.operator not in ("max", "average") or work.rounding == "ceil_inside":
        raise NotServed(f"ONNX has no pooling of {work}")
    rest = {"ceil_mode": int(work.rounding == "ceil")}
    if work.operator == "max":
        return helper.make_node("MaxPool", inputs, ["y"], **windows, **rest)
    return helper.make_node("AveragePool", inputs, ["y"], count_include_pad=int(work.count_padding), **windows, **rest)
