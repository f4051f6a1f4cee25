"""Symbols with parameters as nets without MXNet: what operators compute, what sessions offer, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clgraft.core.errors import ClgraftError
from clgraft.core.model import ModelError, UnsupportedOperators
from tests.plugins.models.damaged import mutated
from tests.plugins.models.symbols import SymbolNet, load_small, read_symbol, session, symbol

FILES = Path(__file__).parent / "files"
ROUNDING = 2e-6
FOUR = (2, 3, 4, 5)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def near(found: np.ndarray, expected: np.ndarray, rounding: float = ROUNDING) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= rounding * max(1, np.abs(expected).max())


# the small net that MXNet has written


def small(**more):
    data, parameters = load_small(FILES)
    with np.load(FILES / "small.npz") as arrays:
        return session(data, parameters, **more), arrays["data"], arrays["output"]


def test_a_net_of_mxnet_computes_what_it_computes_there() -> None:
    net, x, expected = small()
    (port,) = net.inputs
    assert port.name == "data" and port.dtype == "float32"
    (found,) = net.run({"data": x}).values()
    near(found, expected)
    assert list(net.run({"data": x})) == [net.outputs[0].name]


@pytest.mark.parametrize(("precision", "rounding"), [("float64", 1e-5), ("float16", 2e-2)])
def test_a_net_in_another_precision(precision, rounding) -> None:
    net, x, expected = small(precision=precision)
    if precision == "float64" and not net._context.device.has_fp64:
        pytest.skip("the device has no float64")
    (found,) = net.run({"data": x}).values()
    assert found.dtype == precision
    near(found.astype(np.float64), expected, rounding)


def decoder_of_centernet():
    """Return a net with the operators of CenterNet's decoder, its inputs, and what it computes."""
    whole = {"dtype": "int64"}
    net = symbol(
        [
            ("Reshape", "flat", {"shape": "(0, -1)"}, ["heat"]),
            ("topk", "first", {"k": 6, "ret_typ": "both"}, ["flat"]),
            ("Cast", "place", whole, ["first:1"]),
            ("shape_array", "shape", {}, ["heat"]),
            ("SliceChannel", "sizes", {"axis": 0, "num_outputs": 4}, ["shape"]),
            ("elemwise_mul", "area", {}, ["sizes:2", "sizes:3"]),
            ("broadcast_div", "class", {}, ["place", "area"]),
            ("broadcast_mod", "pixel", {}, ["place", "area"]),
            ("broadcast_div", "row", {}, ["pixel", "sizes:3"]),
            ("broadcast_mod", "column", {}, ["pixel", "sizes:3"]),
            ("_arange", "counted", {"start": 256, "dtype": "float32"}, []),
            ("slice_like", "some", {"axes": 0}, ["counted", "flat"]),
            ("expand_dims", "upright", {"axis": -1}, ["some"]),
            ("tile", "tiled", {"reps": "(1, 6)"}, ["upright"]),
            ("Cast", "image", whole, ["tiled"]),
            ("ones_like", "one", whole, ["image"]),
            ("Concat", "joined", {"dim": 0, "num_args": 3}, ["image", "one", "pixel"]),
            ("Reshape", "index", {"shape": "(3, -1)"}, ["joined"]),
            ("Reshape", "lines", {"shape": "(0, 0, -1)"}, ["wide"]),
            ("gather_nd", "taken", {}, ["lines", "index"]),
            ("Reshape", "wides", {"shape": "(-1, 6)"}, ["taken"]),
            ("_div_scalar", "half", {"scalar": 2}, ["wides"]),
            ("Cast", "real", {"dtype": "float32"}, ["column"]),
            ("elemwise_sub", "left", {}, ["real", "half"]),
        ],
        ["class", "row", "left", "first"],
    )
    rng = np.random.default_rng(4)
    heat, wide = rng.permutation(2 * 3 * 35).reshape(2, 3, 5, 7).astype("f4"), random(2, 2, 5, 7)
    order = np.argsort(-heat.reshape(2, -1), 1)[:, :6]
    pixel = order % 35
    wides = np.take_along_axis(wide.reshape(2, 2, -1)[:, 1], pixel, 1)
    expected = [order // 35, pixel // 7, pixel % 7 - wides / 2, -np.sort(-heat.reshape(2, -1), 1)[:, :6]]
    return session(net), {"heat": heat, "wide": wide}, expected


def test_whole_numbers_divide_without_a_fraction() -> None:
    net, given, expected = decoder_of_centernet()
    for found, values in zip(net.run(given).values(), expected):
        near(found, values)
    a, b = np.float32([[7, -7, 7, -7, 6, 0, 5, -5, 16777215]]), np.float32([[2, 2, -2, -2, 3, 4, 0, 9, 16777213]])
    lines = [("Cast", "p", {"dtype": "int32"}, ["a"]), ("Cast", "q", {"dtype": "int32"}, ["b"])]
    lines += [("broadcast_div", "d", {}, ["p", "q"]), ("broadcast_mod", "m", {}, ["p", "q"])]
    lines += [("broadcast_div", "r", {}, ["a", "q"])]
    found = session(symbol(lines, ["d", "m"])).run({"a": a + np.sign(a) * np.float32(0.25) * (abs(a) < 99), "b": b})
    assert found["d_output"].tolist() == [[3, -3, -3, 3, 2, 0, 0, 0, 1]]
    assert found["m_output"].tolist() == [[1, 1, -1, -1, 0, 0, 0, 4, 2]]
    assert session(symbol(lines, ["r"])).run({"a": a[:, :1], "b": b[:, :1]})["r_output"].tolist() == [[3.5]]


def test_batches_of_any_size() -> None:
    net, x, expected = small()
    for count in (1, 2, 5):
        images = np.concatenate([x] * 3)[:count]
        (found,) = net.run({"data": images}).values()
        near(found, np.concatenate([expected] * 3)[:count])


def test_values_inside_parameters_and_the_report() -> None:
    net, x, _ = small()
    with pytest.raises(ModelError, match="no inputs for the value"):
        net.values("data")
    net.run({"data": x})
    normed = next(name for name in net._net.parameters if name.endswith("gamma")).replace("_gamma", "_fwd")
    for name in (normed, f"{normed}_output"):
        assert net.values(name).shape == (2, 8, 8, 8)
    assert np.array_equal(net.values("data"), x)
    assert net.values(normed, {"data": x[:1]}).shape == (1, 8, 8, 8)
    with pytest.raises(ModelError, match="got value 'no such', expected one of the model's"):
        net.values("no such")
    with pytest.raises(ModelError, match=f"nearest: .*{normed}"):
        net.values(f"{normed}x")
    parameters = net.parameters
    assert len(parameters) == 9
    weight = next(array for name, array in parameters.items() if name.endswith("weight"))
    assert weight.dtype == np.float32 and not weight.flags.writeable
    report = net.report({"data": (2, 3, 8, 8)})
    assert any("conv forward n2" in text for text, _ in report.algorithms)
    assert len(net.graph({"data": (4, 3, 8, 8)}).nodes) >= 5
    assert "data" in repr(net)


def test_inputs_of_other_types_are_taken_where_the_type_holds_them() -> None:
    net, x, expected = small()
    near(net.run({"data": x.astype(np.float64)})[net.outputs[0].name], expected)
    whole = np.round(x * 10)
    (floats,), (bytes_,) = (net.run({"data": each}).values() for each in (whole, whole.astype(np.int8)))
    assert np.array_equal(floats, bytes_)
    for wrong, words in [
        (x.astype(complex), "of type complex128"),
        (np.full((1, 3, 8, 8), 2**24 + 1), "which float32 holds exactly"),
        (np.full((1, 3, 8, 8), 1e300), "with numbers beyond float32"),
    ]:
        with pytest.raises(ModelError, match=words):
            net.run({"data": wrong})
    with pytest.raises(ModelError, match=r"got inputs \['x'\], expected \['data'\]"):
        net.run({"x": x})
    with pytest.raises(ClgraftError, match="small_conv0"):
        net.run({"data": x[:, :2]})


# operators that clgraft has no operator of its own for

ONE = {
    "Flatten": ({}, lambda x: x.reshape(2, 60)),
    "identity": ({}, lambda x: x),
    "BlockGrad": ({}, lambda x: x),
    "expand_dims": ({"axis": -1}, lambda x: x[..., None]),
    "Reshape": ({"shape": (0, -1, 5)}, lambda x: x.reshape(2, 12, 5)),
    "Cast": ({"dtype": "float32"}, lambda x: x),
    "amp_cast": ({"dtype": "float32"}, lambda x: x),
    "topk": ({"k": 2, "ret_typ": "mask", "axis": 1}, lambda x: (x != x.min(1, keepdims=True)).astype("f4")),
    "argsort": ({"axis": 2, "is_ascend": "False"}, lambda x: np.argsort(-x, 2).astype("f4")),
    "shape_array": ({}, lambda x: np.array(x.shape, "f4")),
    "repeat": ({"repeats": 3}, lambda x: x.repeat(3)),
    "slice_axis": ({"axis": 1, "begin": 1, "end": "None"}, lambda x: x[:, 1:]),
    "reverse": ({"axis": (1, 3)}, lambda x: x[:, ::-1, :, ::-1]),
    "zeros_like": ({}, np.zeros_like),
    "ones_like": ({}, np.ones_like),
    "floor": ({}, np.floor),
    "rint": ({}, np.rint),
    "fix": ({}, np.trunc),
    "_greater_scalar": ({"scalar": 0.25}, lambda x: (x > 0.25).astype("f4")),
    "_plus_scalar": ({"scalar": 0.25}, lambda x: x + np.float32(0.25)),
    "clip": ({"a_min": 0, "a_max": 0.5}, lambda x: x.clip(0, 0.5)),
    "mean": ({"axis": (2, 3)}, lambda x: x.mean((2, 3))),
    "sum": ({"axis": 1, "keepdims": "True"}, lambda x: x.sum(1, keepdims=True)),
    "transpose": ({"axes": (0, 2, 3, 1)}, lambda x: x.transpose(0, 2, 3, 1)),
    "relu": ({}, lambda x: np.maximum(x, 0)),
    "Pooling": ({"global_pool": "True", "pool_type": "avg"}, lambda x: x.mean((2, 3), keepdims=True)),
    "LeakyReLU": ({"act_type": "rrelu", "lower_bound": 0.1, "upper_bound": 0.3}, lambda x: np.where(x > 0, x, x * 0.2)),
    "Dropout": ({"p": 0.5}, lambda x: x),
}


@pytest.mark.parametrize("operator", ONE)
def test_operators_of_one_input(operator) -> None:
    attributes, expected = ONE[operator]
    x = random(*FOUR)
    net = session(symbol([(operator, "y", attributes, ["x"])]))
    assert [port.name for port in net.outputs] == ["y_output"]
    near(net.run({"x": x})["y_output"], np.asarray(expected(x)))


TWO = {
    "elemwise_add": ({}, (FOUR, FOUR), lambda a, b: a + b),
    "broadcast_mul": ({}, (FOUR, (1, 3, 1, 1)), lambda a, b: a * b),
    "broadcast_greater": ({}, (FOUR, (1, 3, 1, 1)), lambda a, b: (a > b).astype("f4")),
    "_lesser_equal": ({}, (FOUR, FOUR), lambda a, b: (a <= b).astype("f4")),
    "reshape_like": ({}, (FOUR, (6, 20)), lambda a, b: a.reshape(6, 20)),
    "slice_like": ({"axes": (2, -1)}, (FOUR, (9, 9, 3, 2)), lambda a, b: a[:, :, :3, :2]),
    "broadcast_like": ({}, ((2, 1, 4, 1), FOUR), lambda a, b: np.broadcast_to(a, FOUR)),
    "dot": ({"transpose_b": "True"}, ((4, 3), (5, 3)), lambda a, b: a @ b.T),
    "batch_dot": ({"transpose_a": "True"}, ((2, 3, 4), (2, 3, 5)), lambda a, b: a.transpose(0, 2, 1) @ b),
    "take": ({"axis": 1}, (FOUR, (7,)), lambda a, b: np.take(a, b.astype(int).clip(0, 2), 1)),
    "gather_nd": ({}, (FOUR, (2, 7, 3)), lambda a, b: a[tuple(b.astype(int))]),
    "Concat": ({"num_args": 2, "dim": 1}, (FOUR, (2, 1, 4, 5)), lambda a, b: np.concatenate([a, b], 1)),
}


@pytest.mark.parametrize("operator", TWO)
def test_operators_of_two_inputs(operator) -> None:
    attributes, shapes, expected = TWO[operator]
    a, b = (random(*shape, seed=i) for i, shape in enumerate(shapes))
    b = b * 3 if operator == "take" else np.abs(b).clip(0, 1.9) if operator == "gather_nd" else b
    net = session(symbol([(operator, "y", attributes, ["a", "b"])]))
    near(net.run({"a": a, "b": b})["y_output"], expected(a, b))


def test_products_of_transposed_matrices() -> None:
    a, b = random(4, 3, seed=1), random(5, 4, seed=2)
    net = session(symbol([("dot", "y", {"transpose_a": "True", "transpose_b": "True"}, ["a", "b"])]))
    near(net.run({"a": a, "b": b})["y_output"], a.T @ b.T)


def test_where_embedding_and_constants() -> None:
    c, a, b = (random(*FOUR, seed=i) for i in range(3))
    net = session(symbol([("_greater_scalar", "c", {"scalar": 0}, ["x"]), ("where", "y", {}, ["c", "a", "b"])]))
    near(net.run({"x": c, "a": a, "b": b})["y_output"], np.where(c > 0, a, b))
    table, index = random(10, 4), np.array([[3, 9], [0, 12]])
    net = session(
        symbol([("Embedding", "y", {"input_dim": 10, "output_dim": 4}, ["index", "table"])]), {"table": table}
    )
    near(net.run({"index": index})["y_output"], table[index.clip(0, 9)])
    lines = [("_arange", "r", {"start": 1, "stop": 9, "step": 2}, []), ("_ones", "o", {"shape": (4,)}, [])]
    net = session(symbol([*lines, ("elemwise_add", "s", {}, ["r", "o"]), ("elemwise_mul", "y", {}, ["s", "x"])]))
    near(net.run({"x": np.ones(4)})["y_output"], np.arange(2, 10, 2, np.float32))


@pytest.mark.parametrize(
    ("shape", "wanted", "reverse", "expected"),
    [  # MXNet's own examples
        ((2, 3, 4), (4, 0, 2), False, (4, 3, 2)),
        ((2, 3, 4), (2, 0, 0), False, (2, 3, 4)),
        ((2, 3, 4), (6, 1, -1), False, (6, 1, 4)),
        ((2, 3, 4), (3, -1, 8), False, (3, 1, 8)),
        ((2, 3, 4), (-1,), False, (24,)),
        ((2, 3, 4), (-2,), False, (2, 3, 4)),
        ((2, 3, 4), (2, -2), False, (2, 3, 4)),
        ((2, 3, 4), (-2, 1, 1), False, (2, 3, 4, 1, 1)),
        ((2, 3, 4), (-3, 4), False, (6, 4)),
        ((2, 3, 4, 5), (-3, -3), False, (6, 20)),
        ((2, 3, 4), (0, -3), False, (2, 12)),
        ((2, 3, 4), (-3, -2), False, (6, 4)),
        ((2, 3, 4), (-4, 1, 2, -2), False, (1, 2, 3, 4)),
        ((2, 3, 4), (2, -4, -1, 3, -2), False, (2, 1, 3, 4)),
        ((10, 5, 4), (-1, 0), False, (40, 5)),
        ((10, 5, 4), (-1, 0), True, (50, 4)),
    ],
)
def test_codes_of_reshape(shape, wanted, reverse, expected) -> None:
    net = session(symbol([("Reshape", "y", {"shape": wanted, "reverse": reverse}, ["x"])]))
    x = random(*shape)
    assert np.array_equal(net.run({"x": x})["y_output"], x.reshape(expected))


# forms of symbols


def test_symbols_of_older_versions() -> None:
    rng = np.random.default_rng(1)
    lines = [
        ("Convolution", "conv", {"kernel": "(3L, 3L)", "num_filter": 4, "no_bias": True}, ["data", "conv_weight"]),
        ("BatchNorm", "bn", {"fix_gamma": "False", "eps": 1e-3}, ["conv", "bn_gamma", "bn_beta"]),
        ("Activation", "act", {"act_type": "relu"}, ["bn"]),
        ("SoftmaxOutput", "softmax", {}, ["act", "softmax_label"]),
    ]
    parameters = {
        "conv_weight": rng.standard_normal((4, 3, 3, 3)).astype("f4"),
        **{name: rng.standard_normal(4).astype("f4") for name in ("bn_gamma", "bn_beta", "bn_moving_mean")},
        "bn_moving_var": rng.uniform(1, 2, 4).astype("f4"),
        "unused": np.zeros(3),
    }
    x = random(2, 3, 5, 5)
    states = ["bn_moving_mean", "bn_moving_var"]
    today = [lines[0], ("BatchNorm", "bn", lines[1][2], [*lines[1][3], *states]), *lines[2:]]
    expected = session(symbol(today), parameters).run({"data": x})["softmax_output"]
    assert expected.shape == (2, 4, 3, 3) and np.allclose(expected.reshape(2, -1).sum(1), 1)
    for key, version in (("attr", True), ("param", False)):
        net = session(symbol(lines, key=key, version=version), parameters)
        assert [port.name for port in net.inputs] == ["data"] and "unused" not in net.parameters
        assert np.array_equal(net.run({"data": x})["softmax_output"], expected)


def test_shapes_and_types_that_a_symbol_states() -> None:
    graph = json.loads(symbol([("Flatten", "y", {}, ["x"])]))
    graph["nodes"][0]["attrs"] = {"__shape__": "(0, 3, 4)", "__dtype__": "1"}
    net = session(json.dumps(graph).encode())
    (port,) = net.inputs
    assert port.shape == ("batch", 3, 4) and port.dtype == "float64"
    with pytest.raises(ModelError, match=r"of shape \(2, 3, 5\) for input 'x'"):
        net.run({"x": np.zeros((2, 3, 5))})


def test_several_outputs_inputs_as_outputs_and_reuse() -> None:
    lines = [("SliceChannel", "s", {"num_outputs": 3, "axis": 1}, ["x"]), ("relu", "r", {}, ["s:1"])]
    net = session(symbol(lines, heads=["s:2", "r", "x", "s:0"]))
    x = random(2, 3, 4)
    found = net.run({"x": x})
    assert list(found) == ["s_output2", "r_output", "x", "s_output0"]
    assert np.array_equal(found["s_output2"], x[:, 2:]) and np.array_equal(found["x"], x)
    assert np.array_equal(found["r_output"], np.maximum(x[:, 1:2], 0)) and not np.shares_memory(found["x"], x)


def test_custom_operators_of_clgraft_and_regions() -> None:
    inner = json.loads(
        symbol([("Custom", "a", {"op_type": "ocl_activation", "act_type": "tanh"}, ["p"]),
                ("Custom", "b", {"op_type": "ocl_eltwise", "operation": "add"}, ["a", "q"])])
    )  # fmt: skip
    line = ("Custom", "y", {"op_type": "ocl_region", "graph": json.dumps(inner)}, ["u", "v"])
    u, v = random(3, 4), random(3, 4, seed=1)
    near(session(symbol([line])).run({"u": u, "v": v})["y_output"], np.tanh(u) + v)


# what is refused


def test_operators_that_do_not_run_are_listed() -> None:
    lines = [
        ("_foreach", "loop", {}, ["x"]),
        ("SVMOutput", "svm", {}, ["loop", "label"]),
        ("Custom", "own", {"op_type": "mine"}, ["svm"]),
        ("Dropout", "drop", {"mode": "always"}, ["own"]),
        ("Convolution", "conv", {"kernel": "(3, 3)"}, ["drop", "w"]),
        ("Reshape", "form", {"shape": "(1, 2)", "colour": "red"}, ["conv"]),
    ]
    with pytest.raises(UnsupportedOperators) as caught:
        session(symbol(lines))
    text = str(caught.value)
    assert len(caught.value.operators) == len(lines)
    for words in (
        *("_foreach 'loop' (no operator of clgraft computes it)", "SVMOutput 'svm'", "'own' (an operator of the user"),
        *("draws random numbers in inference", "num_filter", "colour"),
    ):
        assert words in text


def test_missing_parameters_are_named() -> None:
    data, parameters = load_small(FILES)
    gone = sorted(parameters)[:2]
    with pytest.raises(ModelError) as caught:
        session(data, {name: array for name, array in parameters.items() if name not in gone})
    assert "no array for 2 parameters" in str(caught.value) and all(repr(name) in str(caught.value) for name in gone)
    with pytest.raises(ModelError, match="no array for 1 parameters"):
        session(symbol([("Embedding", "y", {"input_dim": 10, "output_dim": 4}, ["index", "table"])]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.update({k: v[:3] for k, v in p.items() if k.endswith("conv0_weight")}), "conv0"),
        (lambda p: p.update({k: v[:3] for k, v in p.items() if k.endswith("running_mean")}), "moving_mean of shape"),
        (lambda p: p.update({k: v.astype(complex) for k, v in p.items() if k.endswith("bias")}), "complex128"),
    ],
)
def test_parameters_that_do_not_fit_are_named(change, words) -> None:
    data, parameters = load_small(FILES)
    change(parameters)
    with pytest.raises(ModelError, match=words):
        session(data, parameters).run({"data": random(1, 3, 8, 8)})


GOOD = json.loads(symbol([("relu", "y", {}, ["x"])]))


def changed(**more) -> bytes:
    return json.dumps({**GOOD, **more}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "brackets"),
        (b'{"nodes": [' + b"9" * 5000 + b"]}", "5000 digits"),
        (b"\xff\xfe{", "no JSON"),
        (b"[]", "no nodes and heads"),
        (changed(heads=[]), "no nodes and heads"),
        (changed(heads=[[2, 0]]), "output 0 of node 2 among its heads"),
        (changed(heads=[[1, -1]]), "output -1 of node 1"),
        (changed(heads=[[1, 5]]), "output 5 of relu 'y' as a head"),
        (changed(heads=["y"]), "among its heads"),
        (changed(nodes=[{"op": "relu", "name": "y", "inputs": [[0, 0, 0]]}]), "output 0 of node 0"),
        (changed(nodes=[{"op": "null"}]), "without name and op"),
        (changed(nodes=[7]), "without name and op"),
        (changed(nodes=[*GOOD["nodes"][:1], GOOD["nodes"][0]]), "two variables 'x'"),
        (changed(nodes=[{"op": "null", "name": "x", "inputs": 3}]), "that are no list"),
        (changed(nodes=[{"op": "null", "name": "x", "attrs": [1]}]), "that are no object"),
        (changed(nodes=[{"op": "null", "name": "x", "attrs": {"a": "(" * 3000}}]), "of 3000 characters"),
        (changed(nodes=[{"op": "null", "name": "x", "attrs": {"graph": "9" * 3000}}]), "more than 400 digits"),
    ],
)
def test_damaged_symbols_are_named(data, words) -> None:
    with pytest.raises(ModelError) as caught:
        session(data)
    assert words in str(caught.value)


def test_nets_that_want_too_much_are_refused() -> None:
    for line in [
        ("_zeros", "y", {"shape": "(100000, 100000)"}, []),
        ("_zeros", "y", {"shape": "(0, 3)"}, []),
        ("_arange", "y", {"start": 0, "stop": 1e12}, []),
        ("_arange", "y", {"start": 0, "stop": 3, "step": "nan"}, []),
    ]:
        with pytest.raises(ClgraftError):
            session(symbol([line])).run({})
    lines = [("_full", f"c{i}", {"shape": f"({i + 1},)", "value": i}, []) for i in range(1100)]
    with pytest.raises(ModelError, match="at most 1000 in a symbol"):
        session(symbol(lines)).run({})


def test_changed_symbols_are_read_or_refused() -> None:
    data, parameters = load_small(FILES)
    count = 0
    for made in mutated(data, 600, 9):
        try:
            net = SymbolNet(read_symbol(made), parameters)
            net.lower({port.name: (2, 3, 8, 8) for port in net.inputs})
            count += 1
        except ClgraftError as error:
            assert str(error).startswith("["), error
    assert 0 < count < 600


def test_labels_of_losses_inside_of_regions_are_no_inputs() -> None:
    inner = json.loads(
        symbol([("Custom", "a", {"op_type": "ocl_activation", "act_type": "tanh"}, ["p"]),
                ("Custom", "b", {"op_type": "ocl_softmax_output"}, ["a", "q"])])
    )  # fmt: skip
    net = session(symbol([("Custom", "y", {"op_type": "ocl_region", "graph": json.dumps(inner)}, ["u", "label"])]))
    assert [port.name for port in net.inputs] == ["u"]
    u = random(3, 4)
    exp = np.exp(np.tanh(u))
    near(net.run({"u": u})["y_output"], exp / exp.sum(1, keepdims=True))
