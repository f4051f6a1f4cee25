"""Files of opset 9, and files as tf2onnx writes them: the same results as ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from clgraft.plugins.onnx import Session  # noqa: E402
from tests.plugins.onnx.models import model, node  # noqa: E402

RNG = np.random.default_rng(9)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(proto: onnx.ModelProto, **given: np.ndarray) -> None:
    """Compare all outputs with ONNX Runtime's, by name or by place where names are no words of Python."""
    feeds = {port.name: array for port, array in zip(proto.graph.input, given.values())}
    onnx.checker.check_model(proto)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    got = Session(proto).run(feeds)
    assert list(got) == [port.name for port in proto.graph.output]
    for mine, other in zip(got.values(), wanted):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(np.abs(other).max())) if other.size else 1.0
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5 * scale)


F32, I64 = np.float32, np.int64
IMAGES = (2, 3, 8, 6)

# what opset 9 writes as attributes, or as another operator, than newer ones: nodes, shape of y, weights
OPSET_9: dict[str, tuple[list[Any], Sequence[int], dict[str, np.ndarray]]] = {
    "slice by attributes": (
        [node("Slice", "x", "y", axes=[1, 3], starts=[1, -5], ends=[2147483647, -1])],
        (2, 2, 8, 4),
        {},
    ),
    "slice of all axes": ([node("Slice", "x", "y", starts=[0, 1, 2, 1], ends=[1, 3, 7, 5])], (1, 2, 5, 4), {}),
    "upsample nearest": (
        [node("Upsample", "x scales", "y", mode="nearest")],
        (2, 3, 16, 18),
        {"scales": np.array([1, 1, 2, 3], F32)},
    ),
    "upsample linear": (
        [node("Upsample", "x scales", "y", mode="linear")],
        (2, 3, 16, 12),
        {"scales": np.array([1, 1, 2, 2], F32)},
    ),
    "batch norm": (
        [node("BatchNormalization", "x gamma beta mean var", "y", epsilon=1e-3, momentum=0.8)],
        IMAGES,
        {"gamma": random(3), "beta": random(3), "mean": random(3), "var": random(3) ** 2 + 0.5},
    ),
    "dropout": ([node("Dropout", "x", "d", ratio=0.7), node("Relu", "d", "y")], IMAGES, {}),
    "cast": (
        [node("Cast", "x", "i", to=TensorProto.INT32), node("Cast", "i", "y", to=TensorProto.FLOAT)],
        IMAGES,
        {},
    ),
    "clip by attributes": ([node("Clip", "x", "y", min=-0.5, max=0.75)], IMAGES, {}),
    "pad by attributes": (
        [node("Pad", "x", "y", mode="constant", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=1.5)],
        (2, 3, 9, 9),
        {},
    ),
    "pad by reflection": ([node("Pad", "x", "y", mode="reflect", pads=[0, 0, 2, 1, 0, 0, 1, 3])], (2, 3, 11, 10), {}),
    "unsqueeze and squeeze": (
        [node("Unsqueeze", "x", "u", axes=[0, 3]), node("Squeeze", "u", "s", axes=[0]), node("Neg", "s", "y")],
        (2, 3, 1, 8, 6),
        {},
    ),
    "split by attributes": (
        [
            node("Split", "x", "a b", axis=3, split=[2, 4]),
            node("ReduceSum", "b", "s", axes=[3], keepdims=1),
            node("Add", "a s", "y"),
        ],
        (2, 3, 8, 2),
        {},
    ),
    "reductions by attributes": (
        [
            node("ReduceMean", "x", "m", axes=[2, 3], keepdims=0),
            node("ReduceMax", "x", "t", axes=[2, 3], keepdims=0),
            node("Sub", "t m", "y"),
        ],
        (2, 3),
        {},
    ),
    "softmax of flattened axes": ([node("Softmax", "x", "y", axis=2)], IMAGES, {}),
    "softmax by default": ([node("LogSoftmax", "x", "y")], IMAGES, {}),
    "product with a bias": (
        [node("Flatten", "x", "f"), node("Gemm", "f w b", "y", alpha=0.5, beta=2.0)],
        (2, 5),
        {"w": random(144, 5), "b": random(5)},
    ),
    "matrix product added": (
        [node("Reshape", "x rows", "r"), node("MatMul", "r w", "m"), node("Add", "m b", "y")],
        (12, 5),
        {"rows": np.array([-1, 24], I64), "w": random(24, 5), "b": random(5)},
    ),
    "average pooling": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER")],
        (2, 3, 4, 6),
        {},
    ),
    "pooling without ceil": (
        [
            node("MaxPool", "x", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0]),
            node("GlobalAveragePool", "p", "y"),
        ],
        (2, 3, 1, 1),
        {},
    ),
    "transposed convolution": (
        [node("ConvTranspose", "x w", "y", strides=[2, 2], output_padding=[1, 1], pads=[1, 1, 1, 1])],
        (2, 4, 16, 12),
        {"w": random(3, 4, 3, 3)},
    ),
    "parametric rectifier": ([node("PRelu", "x slope", "y")], IMAGES, {"slope": random(3, 1, 1)}),
    "constant of a shape": (
        [node("Shape", "x", "s"), node("ConstantOfShape", "s", "c"), node("Sub", "c x", "y")],
        IMAGES,
        {},
    ),
    "where": (
        [node("Greater", "x half", "more"), node("Where", "more x half", "y")],
        IMAGES,
        {"half": np.array(0.5, F32)},
    ),
    "gather and tile": (
        [node("Gather", "x places", "g", axis=2), node("Tile", "g times", "y")],
        (2, 6, 3, 6),
        {"places": np.array([7, 0, 3], I64), "times": np.array([1, 2, 1, 1], I64)},
    ),
}


@pytest.mark.parametrize("name", OPSET_9)
def test_operators_of_opset_9(name: str) -> None:
    nodes, shape, weights = OPSET_9[name]
    x = 2 * random(*IMAGES)
    check(model(nodes, {"x": (F32, IMAGES)}, {"y": (F32, shape)}, weights, opset=9), x=x)


def test_weights_that_are_inputs() -> None:
    """Before the fourth version of the file format every initializer was an input of the graph as well."""
    weights = {"w": random(4, 3, 3, 3), "b": random(4)}
    inputs = {"x": (F32, IMAGES), **{name: (F32, array.shape) for name, array in weights.items()}}
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "y")]
    proto = model(nodes, inputs, {"y": (F32, (2, 4, 8, 6))}, weights, opset=9)
    proto.ir_version = 3
    check(proto, x=random(*IMAGES))


class Written:
    """A graph in the form of tf2onnx: images with channels last, a scope in each name, constants that are nodes."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self, operator: str, name: str, *reads: str, **attributes: Any) -> str:
        """Add a node of a scope's name and return its first output."""
        self.nodes.append(helper.make_node(operator, list(reads), [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def constant(self, name: str, array: np.ndarray) -> str:
        """Return the output of a Const node."""
        return self.add("Constant", name, value=numpy_helper.from_array(array, name))

    def weight(self, name: str, array: np.ndarray) -> str:
        """Return an initializer, with the name that a Const node's output would have."""
        self.weights.append(numpy_helper.from_array(array, f"{name}:0"))
        return f"{name}:0"

    def nchw(self, name: str, x: str) -> str:
        return self.add("Transpose", name, x, perm=[0, 3, 1, 2])

    def nhwc(self, name: str, x: str) -> str:
        return self.add("Transpose", name, x, perm=[0, 2, 3, 1])

    def model(self, y: str, x_shape: Sequence[Any], y_shape: Sequence[Any], opset: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "tf2onnx",
            [helper.make_tensor_value_info("input_1:0", TensorProto.FLOAT, x_shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, y_shape)],
            self.weights,
        )
        domains = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
        return helper.make_model(graph, opset_imports=domains, ir_version=7, producer_name="tf2onnx")


def classifier(opset: int) -> onnx.ModelProto:
    """Return a net of Keras: a strided convolution with "SAME" padding, a depthwise one, pooling and a dense layer."""
    net = Written()
    x = net.nchw("model/conv/Conv2D__6", "input_1:0")
    w = net.weight("model/conv/Conv2D/ReadVariableOp", random(8, 3, 3, 3) / 4)
    # "SAME" with stride 2 pads an even image only at its end
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 1], "group": 1}
    x = net.add("Conv", "model/conv/Conv2D", x, w, pads=[0, 0, 1, 1], **attributes)
    statistics = [net.weight(f"model/bn/{name}", 0.5 + random(8) ** 2) for name in ("gamma", "beta", "mean", "var")]
    x = net.add("BatchNormalization", "model/bn/FusedBatchNormV3", x, *statistics, epsilon=1e-3)
    if opset < 11:
        x = net.add("Clip", "model/relu6/Relu6", x, min=0.0, max=6.0)
    else:
        bounds = [net.constant("const_zero__12", np.array(0, F32)), net.constant("const_six__13", np.array(6, F32))]
        x = net.add("Clip", "model/relu6/Relu6", x, *bounds)
    w = net.weight("model/depthwise/weights", random(8, 1, 3, 3))
    attributes = {"kernel_shape": [3, 3], "strides": [1, 1], "dilations": [1, 1], "group": 8}
    x = net.add("Conv", "model/depthwise/depthwise", x, w, auto_pad="SAME_UPPER", **attributes)
    x = net.nhwc("model/depthwise/depthwise__21", x)  # a bias per channel is added with channels last
    x = net.add("Add", "model/depthwise/BiasAdd", x, net.weight("model/depthwise/bias", random(8)))
    x = net.nchw("model/pool/MaxPool__25", x)
    x = net.add("MaxPool", "model/pool/MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID")
    x = net.nhwc("model/pool/MaxPool__27", x)
    shape = net.constant("const_fold_opt__30", np.array([-1, 4 * 3 * 8], I64))
    x = net.add("Reshape", "model/flatten/Reshape", x, shape)
    x = net.add("MatMul", "model/dense/MatMul", x, net.weight("model/dense/kernel", random(96, 5) / 8))
    x = net.add("Add", "model/dense/BiasAdd", x, net.weight("model/dense/bias", random(5)))
    y = net.add("Softmax", "Identity", x, axis=1 if opset < 13 else -1)
    return net.model(y, ("unk__40", 16, 12, 3), ("unk__41", 5), opset)


def segmenter(opset: int) -> onnx.ModelProto:
    """Return a net that computes the sizes of its results from those of its input, as `tf.shape` does."""
    net = Written()
    x = net.nchw("net/down/Conv2D__6", "input_1:0")
    w = net.weight("net/down/Conv2D/weights", random(6, 3, 3, 3) / 4)
    x = net.add("Conv", "net/down/Conv2D", x, w, pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3])
    x = net.add("LeakyRelu", "net/down/LeakyRelu", x, alpha=0.2)
    whole = net.add("Cast", "net/Shape__9", net.add("Shape", "net/Shape", "input_1:0"), to=TensorProto.INT32)
    sides = net.add("Cast", "net/strided_slice__11", whole, to=TensorProto.INT64)
    low = net.constant("net/strided_slice/begin", np.array([1], I64))
    high = net.constant("net/strided_slice/end", np.array([3], I64))
    sides = net.add("Slice", "net/strided_slice", sides, low, high, net.constant("const_axes__14", np.array([0], I64)))
    front = net.add("Slice", "net/up/Shape__17", net.add("Shape", "net/up/Shape", x), *front_places(net))
    sizes = net.add("Concat", "net/up/Concat__19", front, sides, axis=0)
    empty = net.constant("const_empty_float__20", np.array([], F32))
    x = net.add(
        *("Resize", "net/up/ResizeBilinear", x, empty, empty, sizes),
        mode="linear",
        coordinate_transformation_mode="half_pixel",
        nearest_mode="floor",
    )
    x = net.nhwc("net/up/ResizeBilinear__24", x)
    x = net.add("MatMul", "net/score/Tensordot", x, net.weight("net/score/weights", random(6, 4)))
    y = net.add("Softmax", "Identity", x, axis=3 if opset < 13 else -1)
    return net.model(y, ("unk__1", "unk__2", "unk__3", 3), ("unk__4", "unk__5", "unk__6", 4), opset)


def front_places(net: Written) -> list[str]:
    """Return the places of the batch and the channels in a shape."""
    places = {"begin": 0, "end": 2, "axis": 0}
    return [net.constant(f"net/up/front/{name}", np.array([value], I64)) for name, value in places.items()]


@pytest.mark.parametrize("opset", [9, 13, 15])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_classifier_of_tf2onnx(opset: int, batch: int) -> None:
    check(classifier(opset), x=random(batch, 16, 12, 3))


@pytest.mark.parametrize("opset", [11, 15])
@pytest.mark.parametrize("shape", [(1, 8, 12, 3), (2, 10, 6, 3)])
def test_sizes_that_tf2onnx_computes(opset: int, shape: tuple[int, ...]) -> None:
    check(segmenter(opset), x=random(*shape))
