"""Small models and arrays in the place of a reader's own, by the names that snippets use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clgraft.caffe_layers.nets.weights import LayerWeights, write_caffemodel

FILES = Path(__file__).resolve().parents[1] / "plugins" / "models" / "files"
NET = """
name: "net"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc7" type: "InnerProduct" bottom: "conv1" top: "fc7"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "relu7" type: "ReLU" bottom: "fc7" top: "relu7" }
layer { name: "fc8" type: "InnerProduct" bottom: "relu7" top: "fc8"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
"""
SOLVER = 'net: "train_val.prototxt"\nbase_lr: 0.01\nlr_policy: "fixed"\nmax_iter: 1\nsolver_mode: CPU\n'
BLOBS = {"conv1": ((4, 3, 3, 3), (4,)), "fc7": ((4, 144), (4,)), "fc8": ((2, 4), (2,))}


def array(*shape: int) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def prototxts() -> None:
    """Write nets, a solver and weights into the working directory."""
    for name in ("net", "train_val", "deploy"):
        Path(f"{name}.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER)
    layers = [LayerWeights(name, "", tuple(array(*shape) for shape in shapes)) for name, shapes in BLOBS.items()]
    write_caffemodel("net.caffemodel", layers, "net")


def problems() -> dict[str, Any]:
    """Return the arrays of the problems on the pages."""
    from clgraft import core

    x, w, y = array(8, 64, 56, 56), array(64, 64, 3, 3), array(8, 64, 56, 56)
    channel = {name: np.abs(array(64)) + 0.5 for name in ("gamma", "mean", "var", "dgamma", "dbeta")}
    buffers = [core.Buffer(a.ctypes.data, a.nbytes, "float32") for a in (x, w, y)]
    rows = {name: array(8, 64, 3136) for name in ("rows", "dy", "dx")}
    found = {"x": x, "w": w, "y": y, "buffers": buffers, "scalars": (), **channel, **rows}
    return {**found, "scale": array(64, 1, 1), "squares": array(64)}


def graphs() -> dict[str, Any]:
    """Return a graph, and arrays for it."""
    from clgraft import core
    from clgraft.core.graph import GraphBuilder

    on = GraphBuilder()
    x, w = on.input("x", (8, 3, 32, 32)), on.input("w", (16, 3, 3, 3))
    (z,) = on.add("conv forward n8 ic3 ih32 iw32 oc16 kh3 kw3 ph1 pw1", x, w)
    graph = on.graph(z)
    images, weights = array(8, 3, 32, 32), array(16, 3, 3, 3)
    compiled = core.context().compile(graph)
    given = {"x": images, "w": weights}
    return {
        **{"graph": graph, "parameters": {"w": weights}, "images": images, "weights": weights, "z": z},
        **{"seed": array(8, 16, 32, 32), "forward": compiled, "backward": compiled},
        **{"arrays": given, "others": dict(given), "step": 1},
    }


def of_core() -> dict[str, Any]:
    """Return what snippets without a framework use."""
    prototxts()
    pictures = model()
    return {**problems(), **graphs(), "pictures": pictures, "batches": [(pictures, np.arange(len(pictures)) % 2)]}


def model() -> np.ndarray:
    """Write a small net of MXNet's with its parameters, and return what it takes."""
    for name in ("small-symbol.json", "small-0000.params"):
        shutil.copy(FILES / name, name)
    with np.load(FILES / "small.npz") as arrays:
        return np.array(arrays["data"])


def of_mxnet() -> dict[str, Any]:
    """Return symbols, a Gluon net and a module."""
    import clgraft.mxnet_ops  # noqa: F401  # isort: skip
    import mxnet as mx
    from mxnet import gluon

    data = mx.sym.Variable("data")
    h = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="conv0")
    h = mx.sym.broadcast_add(
        mx.sym.Activation(h, act_type="relu", name="stage1_relu"),
        mx.sym.Variable("shift", shape=(1, 4, 1, 1), init=mx.init.Zero()),
    )
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(h, num_hidden=2, name="fc1"), name="softmax")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3, in_channels=3), gluon.nn.Activation("relu"), gluon.nn.Dense(2, in_units=144))
    net.initialize()
    module = mx.mod.Module(symbol)
    module.bind([("data", (2, 3, 8, 8))], [("softmax_label", (2,))])
    module.init_params()
    arrays = {"x": (2, 3, 8, 8), "weight": (64, 3, 3, 3), "bias": (64,), "w": (2, 3, 8, 8)}
    values: dict[str, Any] = {name: mx.nd.array(array(*shape)) for name, shape in arrays.items()}
    values["batches"] = [(values["x"], mx.nd.array([0, 1]))]
    values["iterator"] = mx.io.NDArrayIter(values["x"], mx.nd.array([0, 1]), 2)
    values["loss_function"] = gluon.loss.SoftmaxCrossEntropyLoss()
    values["autograd"] = mx.autograd
    return {"mx": mx, "gluon": gluon, "data": data, "symbol": symbol, "net": net, "module": module, **values}


def of_torch() -> dict[str, Any]:
    """Return a module, a batch and a loss."""
    import torch

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    images, labels = torch.from_numpy(array(2, 3, 8, 8)), torch.tensor([0, 1])
    return {
        **{"torch": torch, "model": model, "images": images, "labels": labels},
        "criterion": torch.nn.CrossEntropyLoss(),
    }


def of_onnx() -> dict[str, Any]:
    """Return images, and write model.onnx and image.npy."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    sizes = ["n", 3, "h", "w"]
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(array(4, 3, 3, 3), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
    np.save("image.npy", array(1, 3, 224, 224))
    import clgraft

    pictures = model()
    session = clgraft.load("small-symbol.json", "small-0000.params")
    images = array(1, 3, 16, 16)
    batches = [(images, np.arange(196).reshape(1, 14, 14) % 4)]
    return {"images": images, "pictures": pictures, "session": session, "batches": batches}


def of_caffe() -> dict[str, Any]:
    """Write a net and a solver; skip the test where Caffe is a wheel, which has no library for C++ layers."""
    from clgraft.core import BuildError

    try:
        import clgraft.caffe_layers.native  # noqa: F401
    except BuildError as error:
        if "got no libcaffe.so" not in str(error):
            raise
        pytest.skip("needs Caffe's shared library")
    prototxts()
    return {}


# the framework that a snippet needs -> what makes its names
NAMESPACES: dict[str, Callable[[], dict[str, Any]]] = {
    "": of_core,
    "mxnet": of_mxnet,
    "torch": of_torch,
    "onnx": of_onnx,
    "caffe": of_caffe,
}

# declarations in front of the snippets of C, which are statements of a program
C_PROGRAM = """
#include <stdint.h>
#include "clgraft.h"
void run(clg_context context, clg_plan plan, clg_array array, clg_event event, const clg_buffer *buffers,
         uint32_t count, const char *text, const float *images, uint64_t bytes, clg_session session, clg_port port,
         clg_tensor x, clg_tensor y) {
%s}
"""
