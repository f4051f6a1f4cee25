"""Nets that MXNet has written, run without it, against MXNet itself: the zoo, checkpoints, swapped symbols, files."""

from __future__ import annotations

import clgraft.mxnet_ops as ops  # isort: skip  (before MXNet)

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft
from clgraft.core.model import ModelError
from clgraft.mxnet_ops.symbols import params
from clgraft.mxnet_ops.symbols.structural import by_structure, is_structural
from clgraft.mxnet_ops.symbols.symbol import read_symbol
from tests.mxnet_ops.zoo_comparison import NETS, filled, image_size, make

# a net of each family; the others are left to `make test-all` (tests/everyday.py)
FAMILIES = [
    *("alexnet", "vgg11_bn", "resnet18_v1", "resnet50_v2", "squeezenet1.1", "densenet121", "inceptionv3"),
    *("mobilenet0.25", "mobilenetv2_0.25"),
]
DEPTH_ROUNDING = 1e-3  # of the largest output, after up to 200 layers
DOUBLE_ROUNDING = 1e-10
TYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64"]


def written(symbol: mx.sym.Symbol, arrays, auxiliary, folder, dtype: str = "float32"):
    """Write a checkpoint and return its symbol's file."""
    given, states = ({k: mx.nd.array(v, dtype=dtype) for k, v in found.items()} for found in (arrays, auxiliary))
    given.pop("data", None)
    mx.model.save_checkpoint(str(folder / "net"), 0, symbol, given, states)
    return folder / "net-symbol.json"


def computed(symbol: mx.sym.Symbol, arrays, auxiliary, dtype: str = "float32") -> list[np.ndarray]:
    """Return what MXNet computes."""
    given, states = ({k: mx.nd.array(v, dtype=dtype) for k, v in found.items()} for found in (arrays, auxiliary))
    executor = symbol.bind(mx.cpu(), given, None, "null", states)
    return [output.asnumpy() for output in executor.forward(is_train=False)]


def compare(name: str, folder) -> None:
    symbol = make(name)(mx.sym.var("data"))
    arrays, auxiliary = filled(symbol, (1, 3, image_size(name), image_size(name)), 3)
    (expected,) = computed(symbol, arrays, auxiliary)
    session = clgraft.load(written(symbol, arrays, auxiliary, folder))
    assert [port.name for port in session.outputs] == symbol.list_outputs()
    assert [port.name for port in session.inputs] == ["data"]
    assert set(session.parameters) == {*symbol.list_inputs()} - {"data"}
    (found,) = session.run({"data": arrays["data"].astype(np.float32)}).values()
    assert np.ptp(expected) > 0
    assert np.abs(found - expected).max() <= DEPTH_ROUNDING * np.abs(expected).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_net_of_each_family(name, tmp_path) -> None:
    compare(name, tmp_path)


@pytest.mark.parametrize("name", [name for name in NETS if name not in FAMILIES])
def test_every_other_net_of_the_zoo(name, tmp_path) -> None:
    compare(name, tmp_path)


@pytest.mark.parametrize("name", ["resnet18_v1", "mobilenetv2_0.25", "squeezenet1.1"])
def test_in_double_precision_nothing_differs(name, tmp_path, context) -> None:
    if not context.device.has_fp64:
        pytest.skip("the device has no float64")
    symbol = make(name)(mx.sym.var("data"))
    arrays, auxiliary = filled(symbol, (1, 3, image_size(name), image_size(name)), 3)
    (expected,) = computed(symbol, arrays, auxiliary, "float64")
    session = clgraft.load(written(symbol, arrays, auxiliary, tmp_path, "float64"), precision="float64")
    (found,) = session.run({"data": arrays["data"]}).values()
    assert np.abs(found - expected).max() <= DOUBLE_ROUNDING * np.abs(expected).max()


def test_every_value_inside_has_mxnets_name(tmp_path) -> None:
    symbol = make("resnet18_v1")(mx.sym.var("data"))
    arrays, auxiliary = filled(symbol, (1, 3, 48, 48), 3)
    internals = symbol.get_internals()
    session = clgraft.load(written(symbol, arrays, auxiliary, tmp_path))
    given = {"data": arrays["data"].astype(np.float32)}
    names = internals.list_outputs()
    for name in [name for name in names if name.endswith("_output")][::9]:
        (expected,) = computed(internals[name], *_needed(internals[name], arrays, auxiliary))
        found = session.values(name, given)
        assert np.abs(found - expected).max() <= DEPTH_ROUNDING * max(1e-3, np.abs(expected).max()), name
    assert set(names) <= set(session._program({"data": (1, 3, 48, 48)}).lowered.values)


def _needed(symbol, arrays, auxiliary):
    names = set(symbol.list_inputs())
    return tuple({k: v for k, v in found.items() if k in names} for found in (arrays, auxiliary))


def test_swapped_symbols_run_as_well(tmp_path) -> None:
    symbol = make("mobilenet0.25")(mx.sym.var("data"))
    arrays, auxiliary = filled(symbol, (2, 3, 48, 48), 3)
    (expected,) = computed(symbol, arrays, auxiliary)
    for options in ({}, {"regions": True}, {"regions": True, "frozen": True}):
        swapped, _ = ops.swap_symbol(symbol, **options)
        session = clgraft.load(written(swapped, arrays, auxiliary, tmp_path))
        (found,) = session.run({"data": arrays["data"].astype(np.float32)}).values()
        assert np.abs(found - expected).max() <= DEPTH_ROUNDING * np.abs(expected).max()


V = mx.sym.var
MODES = [
    ("lstm", 1, False),
    ("lstm", 2, True),
    ("gru", 2, False),
    ("gru", 1, True),
    ("rnn_tanh", 2, True),
    ("rnn_relu", 1, False),
]


def layer(mode: str, layers: int, both: bool) -> mx.sym.Symbol:
    names = {"state_cell": V("c")} if mode == "lstm" else {}
    keys = {"mode": mode, "num_layers": layers, "bidirectional": both, "state_outputs": True}
    return mx.sym.RNN(V("x"), V("p"), V("h"), **names, state_size=5, **keys, name="o")


BOXES = {"x": (2, 40, 6)}
OPERATORS = {
    **{f"{mode} {n} {both}": (layer(mode, n, both), {"x": (4, 3, 6)}) for mode, n, both in MODES},
    "nms": (mx.sym.contrib.box_nms(V("x"), 0.2, name="o"), BOXES),
    "nms labels": (mx.sym.contrib.box_nms(V("x"), 0.2, 0.3, 9, id_index=0, background_id=1, name="o"), BOXES),
    "nms all labels": (mx.sym.contrib.box_nms(V("x"), 0.2, id_index=0, force_suppress=True, name="o"), BOXES),
    "nms center": (mx.sym.contrib.box_nms(V("x"), 0.2, topk=20, in_format="center", name="o"), BOXES),
    "nms to center": (mx.sym.contrib.box_nms(V("x"), 0.2, out_format="center", name="o"), BOXES),
    "decode": (
        mx.sym.contrib.box_decode(V("x"), V("a"), 0.1, 0.1, 0.2, 0.2, clip=0.1, format="corner", name="o"),
        {"x": (2, 7, 4), "a": (1, 7, 4)},
    ),
    **{
        f"align {keys}": (
            mx.sym.contrib.ROIAlign(V("x"), V("r"), (3, 2), 0.5, name="o", **keys),
            {"x": (2, 3, 9, 11), "r": (5, 5)},
        )
        for keys in ({}, {"sample_ratio": 2}, {"aligned": True})
    },
    "align to pixels": (
        mx.sym.ROIPooling(V("x"), V("r"), (3, 2), 0.5, name="o"),
        {"x": (2, 3, 9, 11), "r": (5, 5)},
    ),
    "deformable": (
        mx.sym.contrib.DeformableConvolution(
            V("x"), V("d"), V("w"), V("b"), kernel=(3, 3), num_filter=4, pad=(1, 1), num_deformable_group=2, name="o"
        ),
        {"x": (2, 4, 7, 8), "d": (2, 36, 7, 8)},
    ),
    "deformable, strided": (
        mx.sym.contrib.DeformableConvolution(
            V("x"), V("d"), V("w"), kernel=(3, 2), num_filter=4, stride=(2, 1), dilate=(1, 2), no_bias=True,
            num_group=2, name="o"
        ),
        {"x": (2, 4, 9, 8), "d": (2, 12, 4, 6)},
    ),
    "modulated": (
        mx.sym.contrib.ModulatedDeformableConvolution(
            V("x"), V("d"), V("m"), V("w"), V("b"), kernel=(3, 3), num_filter=4, pad=(1, 1), name="o"
        ),
        {"x": (2, 4, 7, 8), "d": (2, 18, 7, 8), "m": (2, 9, 7, 8)},
    ),
    "topk": (mx.sym.topk(V("x"), axis=1, k=3, ret_typ="both", name="o"), {"x": (2, 1500, 3)}),
    "places": (mx.sym.topk(V("x"), axis=None, k=4, is_ascend=True, name="o"), {"x": (2, 7, 3)}),
    "embedding": (mx.sym.Embedding(20 * V("x"), V("w"), input_dim=10, output_dim=3, name="o"), {"x": (2, 7)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_recurrent_and_of_detection_nets(name, tmp_path, rng) -> None:
    symbol, shapes = OPERATORS[name]
    inferred, _, _ = symbol.infer_shape(**shapes)
    arrays = {n: rng.standard_normal(shape).astype("f4") for n, shape in zip(symbol.list_arguments(), inferred)}
    if name.startswith("nms"):
        x = rng.uniform(0, 1, BOXES["x"])
        x[..., 0] = rng.integers(0, 3, x.shape[:2])
        x[..., 4:] += 0 if "in_format" in str(symbol.attr_dict()) else x[..., 2:4]
        arrays["x"] = x.astype("f4")
    elif name.startswith("align"):
        corner = rng.uniform(-2, 15, (5, 2))
        number = np.array([[0], [1], [1], [0], [1]])
        arrays["r"] = np.concatenate([number, corner, corner + rng.uniform(0, 12, (5, 2))], 1).astype("f4")
    expected = computed(symbol, arrays, {})
    session = clgraft.load(written(symbol, {k: arrays.get(k, np.zeros(1)) for k in "pwb"}, {}, tmp_path))
    assert [port.name for port in session.outputs] == symbol.list_outputs()
    found = session.run({port.name: arrays[port.name] for port in session.inputs})
    for one, other in zip(found.values(), expected):
        assert np.ptp(other) > 0
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_exports_of_gluon(tmp_path) -> None:
    net = gluon.model_zoo.vision.get_model("mobilenet0.25", classes=7)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    expected = net(mx.nd.array(x)).asnumpy()
    net.export(str(tmp_path / "net"), epoch=12)
    (found,) = clgraft.load(tmp_path / "net-symbol.json").run({"data": x}).values()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_gluons_half_precision_keeps_norms_in_single_precision(tmp_path) -> None:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Dense(6, in_units=4, flatten=False),
        gluon.nn.LayerNorm(in_channels=6),
        gluon.nn.BatchNorm(in_channels=6),
    )
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float16)
    expected = net(mx.nd.array(x, dtype="float32")).asnumpy()
    net.cast("float16")  # in which MXNet has no dense layers on CPUs
    net(mx.sym.var("data")).save(str(tmp_path / "net-symbol.json"))
    mx.nd.save(str(tmp_path / "net.params"), {k: v.data() for k, v in net.collect_params().items()})
    session = clgraft.load(tmp_path / "net-symbol.json")
    assert {array.dtype.name for array in session.parameters.values()} == {"float16", "float32"}
    (found,) = session.run({"data": x}).values()
    assert np.abs(found - expected).max() <= 2e-2 * np.abs(expected).max()


# files


@pytest.mark.parametrize("numpy_shapes", [False, True])
def test_arrays_of_mxnet_are_read_and_the_other_way_round(numpy_shapes, tmp_path) -> None:
    rng = np.random.default_rng(2)
    arrays = {name: (rng.standard_normal((3, 4)) * 9).astype(name) for name in TYPES}
    if numpy_shapes:
        arrays.update(
            scalar=np.float32(3).reshape(()), none=np.zeros((0, 2), np.float32), truth=np.array([True, False])
        )
    with mx.util.np_shape(numpy_shapes), mx.util.np_array(numpy_shapes):
        make_array = mx.np.array if numpy_shapes else mx.nd.array
        save, load = (mx.npx.save, mx.npx.load) if numpy_shapes else (mx.nd.save, mx.nd.load)
        save(str(tmp_path / "a"), {k: make_array(v, dtype=v.dtype) for k, v in arrays.items()})
        params.write_params(tmp_path / "b", params.read_params(tmp_path / "a"))
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        params.write_params(tmp_path / "c", arrays)
        found = load(str(tmp_path / "c"))
        for name, array in arrays.items():
            assert np.array_equal(found[name].asnumpy(), array) and found[name].dtype == array.dtype


def test_older_forms_are_what_mxnet_takes_them_for(tmp_path) -> None:
    from tests.plugins.models.test_params import FORMS, FOUR, in_list

    for name, form in FORMS.items():
        (tmp_path / name).write_bytes(in_list(form))
        with mx.util.np_shape(name == "V3"), mx.util.np_array(name == "V3"):
            found = (mx.npx.load if name == "V3" else mx.nd.load)(str(tmp_path / name))
        assert np.array_equal(found["w"].asnumpy(), FOUR)


def test_sparse_arrays_are_refused_by_name(tmp_path) -> None:
    for kind in ("row_sparse", "csr"):
        mx.nd.save(str(tmp_path / "s"), {"w": mx.nd.ones((3, 4)).tostype(kind)})
        with pytest.raises(ModelError, match=f"of storage {kind}"):
            params.read_params(tmp_path / "s")


@pytest.mark.parametrize("name", NETS)
def test_parameters_named_by_blocks_find_their_places(name) -> None:
    net = make(name)
    symbol = net(mx.sym.var("data"))
    shapes, _, states = symbol.infer_shape(data=(1, 3, image_size(name), image_size(name)))
    sizes = dict(zip([*symbol.list_arguments(), *symbol.list_auxiliary_states()], [*shapes, *states]))
    expected = {block: each.name for block, each in net._collect_params_with_prefix().items()}
    arrays = {block: np.full((1,), i) for i, block in enumerate(expected)}
    shaped = {block: np.broadcast_to(arrays[block], sizes[own]) for block, own in expected.items()}
    graph = read_symbol(symbol.tojson().encode())
    assert is_structural(graph, shaped)
    found = by_structure(graph, shaped)
    assert {own: array.flat[0] for own, array in found.items()} == {
        own: arrays[block][0] for block, own in expected.items()
    }


def test_saved_parameters_next_to_an_export(tmp_path) -> None:
    net = gluon.model_zoo.vision.get_model("resnet18_v1", classes=7)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = np.random.default_rng(0).standard_normal((2, 3, 48, 48)).astype(np.float32)
    expected = net(mx.nd.array(x)).asnumpy()
    net.export(str(tmp_path / "net"))
    net.save_parameters(str(tmp_path / "saved.params"))
    (found,) = clgraft.load(tmp_path / "net-symbol.json", tmp_path / "saved.params").run({"data": x}).values()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    other = gluon.nn.Dense(3, in_units=2)
    other.initialize()
    other.save_parameters(str(tmp_path / "other.params"))
    with pytest.raises(ModelError, match="no array for"):
        clgraft.load(tmp_path / "net-symbol.json", tmp_path / "other.params")
    fewer = gluon.model_zoo.vision.get_model("resnet34_v1", classes=7)
    fewer.initialize()
    fewer(mx.nd.array(x))
    fewer.save_parameters(str(tmp_path / "fewer.params"))
    with pytest.raises(ModelError, match="named by blocks, expected"):
        clgraft.load(tmp_path / "net-symbol.json", tmp_path / "fewer.params")
