"""Sessions: shapes and elements that become known late, types, errors, external data, the backend interface."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from clgraft.plugins.onnx import ClgraftBackend, OnnxError, Session, UnsupportedError  # noqa: E402
from tests.plugins.onnx.models import model, node, small_net  # noqa: E402

runtime = pytest.importorskip("onnxruntime")


def expected(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    return runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)


def check(proto: onnx.ModelProto, given: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    got = Session(proto).run(given)
    for port, other in zip(proto.graph.output, expected(proto, given)):
        mine = got[port.name]
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


def image(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, 16, 16)).astype(np.float32)


def test_a_dynamic_batch_has_a_graph_for_each_size() -> None:
    proto = small_net()
    session = Session(proto)
    for batch in (1, 3, 1, 7):
        (y,) = session.run({"x": image(batch)}).values()
        np.testing.assert_allclose(y, expected(proto, {"x": image(batch)})[0], rtol=1e-5, atol=1e-6)
    assert len(session._programs) == 3


def test_constants_fold_into_the_convolution() -> None:
    """The batch norm is part of the weights, and the shape of the reshape is no problem of the graph."""
    report = Session(small_net()).report({"x": (2, 3, 16, 16)})
    kinds = [text.removeprefix("fused ").split()[0] for text, _ in report.algorithms]
    assert "batchnorm" not in kinds and report.nodes < report.nodes_before
    assert kinds.count("conv") == kinds.count("dense") == 1 and not {"gather", "concat"} & set(kinds)


def test_threads_share_a_session() -> None:
    proto = small_net()
    session = Session(proto)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: session.run({"x": image(1 + i % 3, i)})["y"], range(12)))
    for i, y in enumerate(found):
        np.testing.assert_allclose(y, expected(proto, {"x": image(1 + i % 3, i)})[0], rtol=1e-5, atol=1e-6)


def test_the_form_of_onnx_runtime() -> None:
    session = Session(small_net())
    named = session.run({"x": image(2)})
    (everything,) = session.run(None, {"x": image(2)})
    (chosen,) = session.run(["y"], {"x": image(2)})
    np.testing.assert_array_equal(everything, named["y"])
    np.testing.assert_array_equal(chosen, named["y"])
    assert session.run([], {"x": image(2)}) == [] and len(session.run(("y", "y"), {"x": image(2)})) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), r"got NoneType, expected a mapping of the inputs \['x'\] to arrays"),
        ((image(2),), r"got ndarray, expected a mapping of the inputs \['x'\] to arrays"),
        ((None, [image(2)]), r"got list, expected a mapping of the inputs \['x'\] to arrays"),
        (("y", {"x": image(2)}), "got str for the names of outputs, expected a list or None"),
        ((["Y"], {"x": image(2)}), r"got output 'Y', expected some of \['y'\]; nearest: y"),
        ((None, {"X": image(2)}), r"got inputs \['X'\], expected \['x'\]; nearest: x"),
    ],
)
def test_arguments_of_other_kinds(arguments, words) -> None:
    with pytest.raises(OnnxError, match=rf"^\[onnx\] {words}$"):
        Session(small_net()).run(*arguments)


@pytest.mark.parametrize("source", [None, 5, ["net.onnx"]])
def test_what_is_no_model_is_named(source) -> None:
    kind = type(source).__name__
    with pytest.raises(OnnxError, match=rf"^\[onnx\] got {kind}, expected the path of an .onnx, its bytes or an onnx"):
        Session(source)


@pytest.mark.parametrize(
    ("shapes", "ready"),
    [
        ({"x": ["n", 3, 224, 224]}, "--shape x=1,3,224,224"),
        ({"x": ["n", 3, "h", "w"]}, "--shape x=1,3,224,224"),
        ({"x": ["n", "length"], "fixed": [1, 5], "z": ["n", 5]}, "--shape x=1,1 --shape z=1,5"),
    ],
)
def test_a_missing_shape_is_proposed(shapes, ready) -> None:
    names = list(shapes)
    nodes = [node("Relu", name, f"y_{name}") for name in names]
    kinds = {name: (np.float32, shape) for name, shape in shapes.items()}
    session = Session(model(nodes, kinds, {f"y_{name}": (np.float32, None) for name in names}))
    with pytest.raises(OnnxError, match=f"got no shape for input 'x' .*, expected one, for example {ready}$"):
        session.report()
    with pytest.raises(OnnxError, match=r"got shapes for \['fixd'\], expected some of the inputs"):
        session.report({"fixd": (1, 5)})


def test_a_shape_may_be_an_input_or_computed_on_the_device() -> None:
    """The elements are found out; each set of them has a graph of its own."""
    nodes = [node("Mul", "s two", "t"), node("Reshape", "x t", "y")]
    kinds = {"x": (np.float32, [2, 12]), "s": (np.int64, [2])}
    proto = model(nodes, kinds, {"y": (np.float32, None)}, {"two": np.array([2, 1], np.int64)})
    session = Session(proto)
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    for sizes in ([1, 12], [3, 4], [1, 12], [4, 3]):
        y = session.run({"x": x, "s": np.array(sizes, np.int64)})["y"]
        np.testing.assert_array_equal(y, x.reshape(2 * sizes[0], sizes[1]))


def test_chosen_boxes_go_on_in_the_graph() -> None:
    """A detection head: the number of boxes is known only after the device has chosen them."""
    nodes = [
        node("NonMaxSuppression", "boxes scores most overlap threshold", "chosen"),
        node("Gather", "chosen two", "which", axis=1),
        node("Squeeze", "which one", "places"),
        node("Squeeze", "boxes zero", "all"),
        node("Gather", "all places", "kept", axis=0),
        node("Mul", "kept factor", "y"),
    ]
    weights = {
        **{"most": np.array([20], np.int64), "overlap": np.array([0.3], np.float32)},
        **{"threshold": np.array([0.4], np.float32), "two": np.array([2], np.int64), "one": np.array([1], np.int64)},
        **{"zero": np.array([0], np.int64), "factor": np.array(300, np.float32)},
    }
    kinds = {"boxes": (np.float32, [1, 50, 4]), "scores": (np.float32, [1, 3, 50])}
    outputs = {"y": (np.float32, None), "chosen": (np.int64, None)}
    proto = model(nodes, kinds, outputs, weights, opset=13)
    session = Session(proto)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        corner = rng.uniform(0, 1, (1, 50, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(0.1, 0.4, (1, 50, 2))], 2).astype(np.float32)
        given = {"boxes": boxes, "scores": rng.uniform(0, 1, (1, 3, 50)).astype(np.float32)}
        got = session.run(given)
        y, chosen = expected(proto, given)
        np.testing.assert_array_equal(got["chosen"], chosen)
        np.testing.assert_allclose(got["y"], y, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_types(dtype: type) -> None:
    nodes = [
        node("MatMul", "x w", "m"),
        node("Greater", "m x", "g"),
        node("Where", "g m x", "c"),
        node("ArgMax", "c", "place", axis=1, keepdims=0),
        node("LayerNormalization", "c scale", "y"),
        node("Cast", "place", "number", to=onnx.TensorProto.FLOAT),
    ]
    rng = np.random.default_rng(1)
    weights = {"w": (rng.standard_normal((8, 8)) / 3).astype(dtype), "scale": np.ones(8, dtype)}
    outputs = {"y": (dtype, [5, 8]), "g": (bool, [5, 8]), "place": (np.int64, [5]), "number": (np.float32, [5])}
    proto = model(nodes, {"x": (dtype, [5, 8])}, outputs, weights)
    tolerance = 4e-3 if dtype == np.float16 else 1e-5
    check(proto, {"x": rng.standard_normal((5, 8)).astype(dtype)}, tolerance)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32])
def test_a_rectifier_of_whole_numbers(dtype: type) -> None:
    proto = model([node("PRelu", "x slope", "y")], {"x": (dtype, [3]), "slope": (dtype, [1])}, {"y": (dtype, [3])})
    x = np.array([0, 4, 7] if dtype is np.uint32 else [-3, 0, 4], dtype)
    y = Session(proto).run({"x": x, "slope": np.array([2], dtype)})["y"]
    np.testing.assert_array_equal(y, np.where(x < 0, 2 * x, x))


@pytest.mark.parametrize("name", ["Affine", "ScaledTanh"])
def test_recurrent_functions_with_numbers(name: str) -> None:
    attributes = {"hidden_size": 1, "activations": [name], "activation_alpha": [0.5], "activation_beta": [0.25]}
    nodes = [node("RNN", "x w r b", "y", **attributes)]
    weights = {"w": np.full((1, 1, 1), 2, np.float32), "r": np.zeros((1, 1, 1), np.float32)}
    weights["b"] = np.array([[0.125, 1]], np.float32)
    proto = model(nodes, {"x": (np.float32, [1, 1, 1])}, {"y": (np.float32, [1, 1, 1, 1])}, weights)
    y = Session(proto).run({"x": np.full((1, 1, 1), 3, np.float32)})["y"].item()
    sum_ = 2 * 3 + 1.125
    assert y == pytest.approx(0.5 * sum_ + 0.25 if name == "Affine" else 0.5 * np.tanh(0.25 * sum_))


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 21])
def test_opsets(opset: int) -> None:
    """Attributes that became inputs, and a softmax that changed its meaning."""
    attributes = opset < 13
    weights = {"axes": np.array([1], np.int64), "low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)}
    squeeze = node("Unsqueeze", "x", "u", axes=[1]) if attributes else node("Unsqueeze", "x axes", "u")
    clip = node("Clip", "u", "c", min=-0.5, max=0.5) if opset < 11 else node("Clip", "u low high", "c")
    total = node("ReduceSum", "c", "s", axes=[1]) if attributes else node("ReduceSum", "c axes", "s")
    nodes = [squeeze, clip, total, node("Softmax", "s", "y", axis=1)]
    used = {name: array for name, array in weights.items() if any(name in n.input for n in nodes)}
    proto = model(nodes, {"x": (np.float32, [2, 3, 4])}, {"y": (np.float32, None)}, used, opset)
    check(proto, {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)})


def test_outputs_that_nothing_computes() -> None:
    """An input, a constant, and the same value twice."""
    nodes = [
        node("Identity", "x", "same"),
        node("Shape", "x", "shape"),
        node("Relu", "x", "y"),
        node("Identity", "y", "z"),
    ]
    outputs = {
        "same": (np.float32, [2, 3]),
        "shape": (np.int64, [2]),
        "y": (np.float32, [2, 3]),
        "z": (np.float32, [2, 3]),
    }
    check(model(nodes, {"x": (np.float32, [2, 3])}, outputs), {"x": np.array([[1, -2, 3], [-4, 5, -6]], np.float32)})


def test_functions_of_a_model_are_inlined() -> None:
    helper = onnx.helper
    body = [helper.make_node("Mul", ["a", "a"], ["q"]), helper.make_node("Add", ["q", "a"], ["r"])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Curve", ["a"], ["r"], body, imports[:1])
    proto = model(
        [helper.make_node("Curve", ["x"], ["y"], domain="own")], {"x": (np.float32, [4])}, {"y": (np.float32, [4])}
    )
    proto.functions.append(function)
    proto.opset_import.append(imports[1])
    x = np.array([1, 2, -3, 0.5], np.float32)
    np.testing.assert_allclose(Session(proto).run({"x": x})["y"], x * x + x)


def test_what_cannot_run_is_refused_with_all_its_nodes() -> None:
    helper = onnx.helper
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], name="noise", shape=[2, 3]),
        helper.make_node("Det", ["x"], ["d"], name="volume"),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    with pytest.raises(UnsupportedError) as caught:
        Session(model(nodes, {"x": (np.float32, [3, 3])}, {"y": (np.float32, None)}))
    assert caught.value.nodes == ("RandomNormal 'noise'", "Det 'volume'")
    proto = model([node("Relu", "x", "y")], {"x": (np.float32, [3])}, {"y": (np.float32, [3])})
    proto.graph.node[0].domain = "com.example"
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedError, match=r"com\.example\.Relu"):
        Session(proto)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected ['x']"),
        ({"x": np.zeros((2, 3, 16, 16))}, "float64 of shape (2, 3, 16, 16) for input 'x', expected float32"),
        ({"x": np.zeros((2, 3, 16), np.float32)}, "expected float32 of shape ('n', 3, 16, 16)"),
        ({"x": np.zeros((2, 4, 16, 16), np.float32)}, "expected float32 of shape ('n', 3, 16, 16)"),
        ({"x": np.zeros((2, 3, 16, 16), np.float32), "z": np.zeros(1)}, "expected ['x']"),
    ],
)
def test_wrong_inputs_are_named(given: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(OnnxError) as caught:
        Session(small_net()).run(given)
    assert str(caught.value).startswith("[onnx] got ") and words in str(caught.value)


def test_shapes_that_do_not_fit_name_the_node() -> None:
    nodes = [node("MatMul", "x w", "y")]
    proto = model(nodes, {"x": (np.float32, ["n", "k"])}, {"y": (np.float32, None)}, {"w": np.ones((4, 2), np.float32)})
    with pytest.raises(OnnxError, match=r"\[onnx\] got MatMul 'MatMul_y', .*shapes \(2, 3\) and \(4, 2\)"):
        Session(proto).run({"x": np.zeros((2, 3), np.float32)})


def test_external_data(tmp_path) -> None:
    proto = small_net()
    onnx.save_model(proto, tmp_path / "net.onnx", save_as_external_data=True, location="weights", size_threshold=16)
    assert (tmp_path / "weights").stat().st_size > 2000
    y = Session(tmp_path / "net.onnx").run({"x": image(2)})["y"]
    np.testing.assert_allclose(y, expected(small_net(), {"x": image(2)})[0], rtol=1e-5, atol=1e-6)


def test_the_backend_interface() -> None:
    proto = small_net()
    (y,) = ClgraftBackend.prepare(proto).run([image(2)])
    (again,) = ClgraftBackend.run_model(proto, [image(2)])
    assert y.tobytes() == again.tobytes() and ClgraftBackend.supports_device("CPU")
    x = np.array([[1, -2], [3, -4]], np.float32)
    (total,) = ClgraftBackend.run_node(onnx.helper.make_node("Add", ["a", "b"], ["c"]), [x, x])
    np.testing.assert_array_equal(total, 2 * x)


@pytest.mark.parametrize(("size", "sizes"), [((7,), (3,)), ((9, 7), (4, 5)), ((6, 4), (3, 2)), ((4, 3, 5), (3, 2, 4))])
def test_adaptive_max_pooling_of_our_own_domain(size: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).integers(-3, 4, (2, 3, *size)).astype(np.float32)
    pool = node("AdaptiveMaxPool", "x", "y index", output_size=sizes)
    pool.domain = "ai.clgraft"
    shapes = {"y": (np.float32, [2, 3, *sizes]), "index": (np.int64, [2, 3, *sizes])}
    proto = model([pool], {"x": (np.float32, [2, "c", *size])}, shapes)
    proto.opset_import.append(onnx.helper.make_opsetid("ai.clgraft", 1))
    got = Session(proto).run({"x": x})
    function = getattr(torch.nn.functional, f"adaptive_max_pool{len(size)}d")
    for name, right in zip(("y", "index"), function(torch.tensor(x), sizes, return_indices=True)):
        assert got[name].dtype == right.numpy().dtype
        np.testing.assert_array_equal(got[name], right.numpy())
    pool.op_type = "Relu"  # which is ONNX's own
    proto.graph.node[0].CopyFrom(pool)
    with pytest.raises(UnsupportedError, match=r"ai\.clgraft\.Relu"):
        Session(proto)


def test_a_precision_leaves_inputs_and_outputs() -> None:
    for precision, off in (("float16", 5e-3), ("bfloat16", 4e-2)):
        session = Session(small_net(), precision=precision)
        (y,) = session.run({"x": image(3)}).values()
        (exact,) = expected(small_net(), {"x": image(3)})
        assert y.dtype == np.float32 and np.linalg.norm(y - exact) <= off * np.linalg.norm(exact)
        word = {"float16": " f16 ", "bfloat16": " bf16 "}[precision]
        texts = [text for text, _ in session.report({"x": (3, 3, 16, 16)}).algorithms]
        assert all(word in text for text in texts if "conv" in text or "dense" in text)
