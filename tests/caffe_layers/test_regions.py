"""Regions in Caffe: the results of the layers one by one, to the bit without passes, and what is hidden is said."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging

import numpy as np
import pytest

caffe = pytest.importorskip("caffe")

from clgraft import core
from clgraft.caffe_layers.swap import swap_back, swap_net
from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Passes
from clgraft.core.problem import SMALL, in_numpy
from tests.caffe_layers.caffe_nets import TEST, TRAIN, inputs, layer, load

CONV = 'convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }'
DENSE = 'inner_product_param { num_output: 5 weight_filler { type: "xavier" } }'
BIASED = "scale_param { bias_term: true }"
FROZEN = "param { lr_mult: 0 } param { lr_mult: 0 }"


@pytest.fixture(autouse=True)
def no_passes(monkeypatch):
    """Without passes both sides run the same kernels on the same values."""
    monkeypatch.setenv("CLGRAFT_GRAPH", "-all")


def op(kind: str, name: str, bottoms: str, tops: str = "", parameters: str = "", frame: str = "") -> str:
    split = (tops or name).split()
    return layer(kind, parameters, ours=False, name=name, bottoms=bottoms.split(), tops=split, frame=frame)


def norm(name: str, blob: str, parameters: str = "") -> str:
    return (
        op("BatchNorm", f"{name}_bn", blob, blob, f"batch_norm_param {{ {parameters} }}")
        + op("Scale", f"{name}_scale", blob, blob, BIASED)
        + op("ReLU", f"{name}_relu", blob, blob)
    )


def nets(text: str, phase: int = TRAIN, keep: tuple = (), **choice: object) -> list:
    """Return the net layer by layer and with regions, with the same random parameters."""
    more = {"precision": choice.pop("precision", None)}
    texts = swap_net(text, **choice)[0], swap_net(text, regions=True, keep=keep, **choice, **more)[0]
    made = [load(each, phase) for each in texts]
    random = np.random.default_rng(1)
    for name, blobs in made[0].params.items():
        for number, blob in enumerate(blobs):
            values = random.uniform(0.5, 1.5, blob.data.shape)
            for net in made:
                net.params[name][number].data[...] = values
    return made


def fill(net, seed: int, labels: int = 0) -> None:
    """Set what the net reads, and the gradients that a pass adds to, to random numbers."""
    random = np.random.default_rng(seed)
    for name, kind in zip(net._layer_names, net.layers):
        if kind.type == "Input":
            for top in net.top_names[name]:
                shape = net.blobs[top].data.shape
                values = random.integers(0, labels, shape) if top == "label" else random.standard_normal(shape)
                net.blobs[top].data[...] = values
    for blobs in net.params.values():
        for blob in blobs:
            blob.diff[...] = random.standard_normal(blob.diff.shape)


def run(net, seed: int, shown: tuple, seeds: tuple = (), labels: int = 5, back: bool = True) -> dict:
    """Run a pass; give shown blobs, the inputs' gradients, and all parameters with theirs."""
    fill(net, seed, labels)
    caffe.set_random_seed(seed)
    for name in shown:
        net.blobs[name].data[...] = np.nan
    net.forward()
    random = np.random.default_rng(seed + 100)
    for name in seeds:
        net.blobs[name].diff[...] = random.standard_normal(net.blobs[name].diff.shape)
    if back:
        net.backward()
    found = {f"{name} data": net.blobs[name].data.copy() for name in shown}
    found.update({f"{name} diff": net.blobs[name].diff.copy() for name in net.inputs if back})
    for name, blobs in net.params.items():
        for number, blob in enumerate(blobs):
            found[f"{name}[{number}]"], found[f"{name}[{number}] diff"] = blob.data.copy(), blob.diff.copy()
    return found


def expect_equal(sides: list, passes: int = 3, **options: object) -> None:
    """Compare some passes of both nets to the bit."""
    for seed in range(passes):
        expected, got = (run(net, seed, **options) for net in sides)
        assert list(got) == list(expected)
        for name, values in expected.items():
            assert np.isfinite(values).all(), name
            np.testing.assert_array_equal(got[name], values, err_msg=name)


LOSS = op("InnerProduct", "fc", "d", parameters=DENSE) + op("SoftmaxWithLoss", "loss", "fc label")
INPUTS = inputs({"data": (3, 4, 7, 5), "label": (3,)})
BODY = (
    op("Convolution", "a", "data", parameters=CONV) + norm("a", "a")
    + op("Convolution", "b", "a", parameters=CONV) + norm("b", "b")
    + op("Eltwise", "c", "a b") + op("ReLU", "c_relu", "c", "c")
    + op("Pooling", "d", "c", parameters="pooling_param { kernel_size: 2 stride: 2 }")
)  # fmt: skip
NET = INPUTS + BODY + LOSS


@pytest.mark.parametrize("forced", ["", "force_backward: true "])
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_residual_net_with_batch_norms(phase, forced):
    """In the test phase nothing is kept at first: the first backward pass computes the forward pass again."""
    expect_equal(nets(forced + NET, phase), shown=("loss",), labels=5)


def test_passes_round_only(monkeypatch):
    monkeypatch.setenv("CLGRAFT_GRAPH", "")
    sides = nets(NET)
    for seed in range(2):
        expected, got = (run(net, seed, ("loss",)) for net in sides)
        for name, values in expected.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-4 * np.abs(values).max(), err_msg=name)


def test_norms_take_activations_across_forward_and_backward(monkeypatch):
    """The value of a norm in front of an activation is neither written nor kept, if no blob shows it."""
    monkeypatch.setenv("CLGRAFT_GRAPH", "")
    body = (
        op("Convolution", "a", "data", parameters=CONV) + norm("a", "a") + op("ReLU", "a_relu", "a", "a")
        + op("Convolution", "b", "a", parameters=CONV) + norm("b", "b") + op("ReLU", "b_relu", "b", "b")
        + op("Pooling", "d", "b", parameters="pooling_param { pool: AVE kernel_size: 3 }")
    )  # fmt: skip
    found = []
    joined = Passes.joined
    monkeypatch.setattr(Passes, "joined", lambda *given: found.append((given[0], joined(*given))) or found[-1][1])
    sides = nets(INPUTS + body + LOSS)
    for seed in range(2):
        expected, got = (run(net, seed, ("loss",)) for net in sides)
        for name, values in expected.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-4 * np.abs(values).max(), err_msg=name)
    before, after = found[-1]
    assert len(before.forward) - len(after.forward) == 2
    assert len(before.backward) - len(after.backward) == 2


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_precision_changes_types_inside_alone(monkeypatch, phase):
    """In the test phase the first backward pass computes the forward pass again, in 16 bits too."""
    monkeypatch.setenv("CLGRAFT_GRAPH", "")
    tolerances = {"float16": 0.05, "bfloat16": 0.3}
    for precision, off in ((name, tolerances[name]) for name in SMALL if in_numpy(name)):
        sides = [nets(NET, phase)[1], nets(NET, phase, precision=precision)[1]]
        for seed in range(2):
            expected, got = (run(net, seed, ("loss",)) for net in sides)
            for name, values in expected.items():
                largest = np.linalg.norm(values)
                assert np.linalg.norm(got[name] - values) <= off * largest + 1e-3, (precision, name)


def test_given_statistics_and_dropout():
    body = (
        op("Convolution", "a", "data", parameters=CONV) + norm("a", "a", "use_global_stats: true")
        + op("Dropout", "drop", "a", "a", "dropout_param { dropout_ratio: 0.3 }")
        + op("Pooling", "d", "a", parameters="pooling_param { pool: AVE kernel_size: 3 }")
    )  # fmt: skip
    for phase in (TRAIN, TEST):
        expect_equal(nets(INPUTS + body + LOSS, phase), shown=("loss",))


def test_batch_statistics_in_the_test_phase_move_once():
    body = op("Convolution", "a", "data", parameters=CONV) + norm("a", "a", "use_global_stats: false")
    sides = nets(INPUTS + body + op("Power", "d", "a", parameters="power_param { scale: 2 }") + LOSS, TEST)
    expect_equal(sides, shown=("loss",))


VIEWS = (
    ("Flatten", "flatten_param { axis: -3 end_axis: 2 }"),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 2 } }"),
    ("Reshape", "reshape_param { shape { dim: 3 dim: 2 } axis: 1 num_axes: 1 }"),
    ("Reshape", "reshape_param { shape { dim: 1 } axis: -1 }"),
)


@pytest.mark.parametrize(("kind", "parameters"), VIEWS)
def test_views_are_part_of_regions(kind, parameters):
    """Caffe's own layer stands on the other side; all that is read twice, inside and at the end, has its gradient."""
    text = (
        inputs({"data": (3, 6, 4, 5), "label": (3,)}) + op("TanH", "t", "data")
        + op(kind, "v", "t", parameters=parameters) + op("Power", "p", "v", parameters="power_param { scale: 2 }")
        + op("Flatten", "f", "p") + op("InnerProduct", "fc", "f", parameters=DENSE)
        + op("SoftmaxWithLoss", "loss", "fc label") + "force_backward: true"
    )  # fmt: skip
    sides = nets(text)
    assert [layer.type for layer in sides[0].layers].count(kind) and kind not in {x.type for x in sides[1].layers}
    assert tuple(sides[0].blobs["v"].shape) == tuple(sides[1].blobs["v"].shape)
    expect_equal(sides, shown=("loss",))


def expression(name: str, bottoms: str, tops: str, fields: dict) -> str:
    names = " ".join([*(f'bottom: "{b}"' for b in bottoms.split()), *(f'top: "{t}"' for t in tops.split())])
    text = f"module: 'clgraft.caffe_layers' layer: 'OclPointwise' param_str: '{json.dumps(fields)}'"
    return f'layer {{ name: "{name}" type: "Python" {names} python_param {{ {text} }} }}\n'


def test_expressions_are_part_of_regions():
    """Several bottoms and tops, a broadcast one, scalars, and one in place."""
    fields = {
        "forward": "y0 = a * x0 * x1; y1 = x0 + x1;",
        "backward": "dx0 = a * dy0 * x1 + dy1; dx1 = a * dy0 * x0 + dy1;",
        "scalars": {"a": 1.5},
    }
    text = (
        inputs({"data": (3, 6, 4), "z": (6, 1), "label": (3,)}) + op("TanH", "t", "data") + op("Sigmoid", "s", "z")
        + expression("e", "t s", "p q", fields) + op("Eltwise", "m", "p q")
        + expression("i", "m", "m", {"forward": "y0 = 1 - x0;", "backward": "dx0 = -dy0;"})
        + op("InnerProduct", "fc", "m", parameters=DENSE) + op("SoftmaxWithLoss", "loss", "fc label")
        + "force_backward: true"
    )  # fmt: skip
    sides = nets(text)
    (region,) = {layer.member.region for layer in sides[1].layers if getattr(layer, "member", None)}
    assert [type(member.layer).__name__ for member in region.members].count("OclPointwise") == 2
    expect_equal(sides, shown=("loss",))


def test_adaptive_pooling_is_part_of_regions():
    pool = expression("p", "t", "p", {"output_size": [3, 2]}).replace("OclPointwise", "OclAdaptiveMaxPooling")
    text = (
        inputs({"data": (3, 2, 7, 5), "label": (3,)}) + op("TanH", "t", "data") + pool
        + op("InnerProduct", "fc", "p", parameters=DENSE) + op("SoftmaxWithLoss", "loss", "fc label")
        + "force_backward: true"
    )  # fmt: skip
    sides = nets(text)
    (region,) = {layer.member.region for layer in sides[1].layers if getattr(layer, "member", None)}
    assert "OclAdaptiveMaxPooling" in [type(member.layer).__name__ for member in region.members]
    expect_equal(sides, shown=("loss",))
    swapped = swap_net(text, regions=True)[0]
    assert swap_back(swapped)[0] == text


@pytest.mark.parametrize(
    ("kind", "parameters", "error"),
    [
        ("Flatten", "flatten_param { axis: 2 end_axis: 1 }", "[flatten] got end_axis 1, expected none in front of"),
        ("Reshape", "reshape_param { shape { dim: 7 dim: -1 } }", "[reshape] got shape [7, -1] for 360 elements"),
        ("Reshape", "reshape_param { shape { dim: 3 dim: 5 } }", "[reshape] got shape [3, 5], expected 360 elements"),
        ("Reshape", "reshape_param { shape { dim: 0 } axis: 4 }", "[reshape] got 0 at [0] of shape [0]"),
        ("Reshape", "reshape_param { shape { dim: 6 } axis: 1 num_axes: 4 }", "[reshape] got num_axes 4 from axis 1"),
    ],
)
def test_views_refuse_what_caffe_refuses(kind, parameters, error):
    text = inputs({"data": (3, 6, 4, 5)}) + op("TanH", "t", "data") + op(kind, "v", "t", parameters=parameters)
    with pytest.raises(ProblemError) as caught:
        load(swap_net(text, regions=True)[0], TRAIN)
    assert error in str(caught.value)


def test_several_inputs_and_outputs():
    text = (
        inputs({"x": (2, 3, 4), "y": (2, 3, 4), "z": (2, 3, 4)})
        + op("Eltwise", "p", "x y", parameters="eltwise_param { operation: PROD }")
        + op("TanH", "t", "p") + op("Slice", "cut", "t", "left right", "slice_param { axis: 1 slice_point: 1 }")
        + op("Power", "out1", "left", parameters="power_param { scale: 3 }")
        + op("Eltwise", "s", "t z") + op("Sigmoid", "out2", "s")
        + "force_backward: true"
    )  # fmt: skip
    # `right` is an output that nobody reads, and its gradient counts
    expect_equal(nets(text), shown=("out1", "out2", "right"), seeds=("out1", "out2", "right"))


def test_shared_parameters_add_up():
    shared = 'param { name: "w" } param { name: "v" }'
    text = inputs({"x": (3, 4), "label": (3,)}) + "".join(
        op("InnerProduct", top, bottom, parameters=DENSE.replace("5", "4"), frame=shared)
        for bottom, top in (("x", "a"), ("a", "b"), ("b", "c"))
    )
    sides = nets(text + op("SoftmaxWithLoss", "loss", "c label"))
    for seed in range(2):
        expected, got = (run(net, seed, ("loss",), labels=4) for net in sides)
        for name, values in expected.items():  # the region adds the parts up first
            np.testing.assert_allclose(got[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


def test_frozen_layers_get_no_gradients():
    text = (
        INPUTS + op("Convolution", "a", "data", parameters=CONV, frame=FROZEN) + op("ReLU", "r", "a", "a")
        + op("Convolution", "b", "a", parameters=CONV, frame="param { lr_mult: 0 }")
        + op("PReLU", "d", "b") + LOSS
    )  # fmt: skip
    expect_equal(nets(text), shown=("loss",))


@pytest.mark.parametrize("stopped", ["a", "b"])
def test_propagate_down_stops_gradients(stopped):
    down = {name: "propagate_down: false" if name == stopped else "" for name in "ab"}
    text = (
        INPUTS + op("Convolution", "a", "data", parameters=CONV, frame=down["a"])
        + op("TanH", "t", "a") + op("Convolution", "b", "t", parameters=CONV, frame=down["b"]) + op("ReLU", "d", "b")
        + LOSS + "force_backward: false"
    )  # fmt: skip
    expect_equal(nets(text), shown=("loss",))


def test_propagate_down_stops_one_of_several_readers():
    text = (
        INPUTS + op("Convolution", "a", "data", parameters=CONV) + op("TanH", "t", "a")
        + op("Convolution", "p", "t", parameters=CONV, frame="propagate_down: false")
        + op("Sigmoid", "q", "t") + op("Convolution", "r", "t", parameters=CONV) + op("Eltwise", "d", "p q r") + LOSS
    )  # fmt: skip
    expect_equal(nets(text), shown=("loss",))


def test_gradients_that_the_text_does_not_foretell():
    """A layer of Caffe's with parameters unknown to the swap: what its calls ask for is computed when they come."""
    table = 'embed_param { input_dim: 5 num_output: 4 bias_term: false weight_filler { type: "xavier" } }'
    text = (
        inputs({"label": (3,)}) + op("Embed", "e", "label", parameters=table)
        + op("InnerProduct", "u", "e", parameters=DENSE) + op("TanH", "t", "u")
        + op("InnerProduct", "fc", "t", parameters=DENSE) + op("SoftmaxWithLoss", "loss", "fc label")
    )  # fmt: skip
    sides = nets(text)
    (region,) = {layer.member.region for layer in sides[1].layers if getattr(layer, "member", None)}
    for member in region.members:  # as if the text had told nothing
        object.__setattr__(member.mark, "back", (False,) * len(member.mark.bottoms))
    expect_equal(sides, shown=("loss",))


def test_losses_have_weights():
    text = (
        INPUTS + BODY + op("InnerProduct", "fc", "d", parameters=DENSE)
        + op("SoftmaxWithLoss", "loss", "fc label", frame="loss_weight: 0.25")
        + op("Reduction", "size", "d", parameters="reduction_param { operation: ASUM }", frame="loss_weight: 0.125")
    )  # fmt: skip
    expect_equal(nets(text), shown=("loss", "size"))


HEADS = (
    INPUTS + op("Convolution", "a", "data", parameters=CONV)
    + op("InnerProduct", "s", "a", parameters=DENSE)
    + 'layer { name: "first" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" }\n'  # Caffe names its top
    + op("Convolution", "d", "a", parameters=CONV)
    + op("Reduction", "size", "d", parameters="reduction_param { operation: ASUM }", frame="loss_weight: -0.125")
    + LOSS + op("SoftmaxWithLoss", "none", "fc label", frame="loss_weight: 0")
)  # fmt: skip


def total(net) -> float:
    """Run a forward pass; return what Caffe adds up."""
    return net._forward(0, len(net.layers) - 1)


def test_several_losses_are_added_up_in_the_same_pass():
    sides = nets(HEADS)
    (region,) = {layer.member.region for layer in sides[1].layers if getattr(layer, "member", None)}
    assert [member.layer.name() for member in region.members] == ["a", "s", "first", "d", "size", "fc", "loss", "none"]
    for seed in range(3):
        for net in sides:
            fill(net, seed, 5)
        expected, got = map(total, sides)
        assert got == expected
        parts = {name: float(sides[1].blobs[name].data) for name in ("first", "size", "loss")}
        assert got == pytest.approx(parts["first"] - 0.125 * parts["size"] + parts["loss"], rel=1e-6)
    expect_equal(sides, shown=("size", "loss", "none"))


def test_losses_of_a_pass_with_new_shapes():
    """The first loss runs layers that Caffe has not reshaped yet, if nobody calls `reshape`."""
    sides = nets(HEADS)
    for seed, batch in enumerate((3, 2, 2, 4)):
        for net in sides:
            net.blobs["data"].reshape(batch, 4, 7, 5)
            net.blobs["label"].reshape(batch)
            fill(net, seed, 5)
        expected, got = map(total, sides)
        assert got == expected
        for net in sides:
            net.backward()
        for name, blobs in sides[0].params.items():
            for number, blob in enumerate(blobs):
                np.testing.assert_array_equal(sides[1].params[name][number].diff, blob.diff, err_msg=name)


def test_a_value_in_the_middle_with_several_readers_outside_has_their_gradients():
    text = (
        "force_backward: true " + INPUTS + op("Convolution", "a", "data", parameters=CONV) + op("TanH", "m", "a")
        + op("Sigmoid", "t", "data") + op("Power", "d", "t")
        + op("Power", "p", "m", parameters="power_param { scale: 2 }")
        + op("Power", "q", "m", parameters="power_param { scale: 3 }") + op("Eltwise", "e", "p q")
        + op("Reduction", "size", "e", frame="loss_weight: 1") + LOSS
    )  # fmt: skip
    expect_equal(nets(text, exclude=["p", "q"]), shown=("size", "loss"))


def test_forced_gradients_of_labels_are_zero():
    text = "force_backward: true " + inputs({"x": (3, 4), "t": (3, 4)}) + op("TanH", "a", "x")
    sides = nets(text + op("SigmoidCrossEntropyLoss", "loss", "a t"))
    expect_equal(sides, shown=("loss",))
    assert not sides[1].blobs["t"].diff.any()


def test_layers_in_place_on_blobs_of_caffes_layers():
    """The first layers of these regions overwrite what a layer of Caffe's computed, and what they need to go back."""
    text = (
        INPUTS + op("Convolution", "a", "data", parameters=CONV) + norm("a", "a")
        + op("Convolution", "b", "a", parameters=CONV) + op("Power", "p", "b", "b", "power_param { power: 2 }")
        + op("Swish", "s", "b", "b") * 0 + op("Scale", "t", "b", "b", BIASED) + op("Power", "d", "b") + LOSS
    )  # fmt: skip
    expect_equal(nets("force_backward: true " + text, exclude=["Convolution", "d"]), shown=("loss", "a", "b"))


def test_a_layer_of_caffes_may_overwrite_a_result():
    """Max pooling needs its results to go back; the layer of Caffe's in place behind it has changed them."""
    text = (
        INPUTS + op("Convolution", "a", "data", parameters=CONV)
        + op("Pooling", "d", "a", parameters="pooling_param { kernel_size: 2 stride: 1 }")
        + op("Dropout", "drop", "d", "d") + LOSS
    )  # fmt: skip
    expect_equal(nets(text, exclude=["drop", "fc"]), shown=("loss",))


def test_batches_of_other_sizes():
    sides = nets(NET)
    for seed, batch in enumerate((3, 2, 3, 1, 2, 3)):
        for net in sides:
            net.blobs["data"].reshape(batch, 4, 7, 5)
            net.blobs["label"].reshape(batch)
            net.reshape()
        expected, got = (run(net, seed, ("loss",)) for net in sides)
        for name, values in expected.items():
            np.testing.assert_array_equal(got[name], values, err_msg=f"{name}, batch {batch}")


def test_backward_may_be_repeated_or_left_out():
    sides = nets("force_backward: true " + NET)
    for net in sides:
        fill(net, 0, 5)
        net.forward()
        net.backward()
    for net in sides:
        fill(net, 1, 5)
        net.forward()
        fill(net, 2, 5)
        net.forward()
        net.backward()
        net.backward()
    for name, blobs in sides[0].params.items():
        for number, blob in enumerate(blobs):
            np.testing.assert_array_equal(sides[1].params[name][number].diff, blob.diff, err_msg=name)
    np.testing.assert_array_equal(sides[1].blobs["data"].diff, sides[0].blobs["data"].diff)


def test_hidden_blobs_say_so(caplog):
    (_, net) = nets(NET)
    fill(net, 0, 5)
    net.forward()
    with caplog.at_level(logging.WARNING):
        assert list(net.blobs["a"].shape) == [3, 6, 7, 5] and net.blobs["a"].count == 630
        assert not caplog.records
        for _ in range(2):
            assert np.isnan(net.blobs["a"].data).all() and net.blobs["a"].diff.shape == (3, 6, 7, 5)
    assert len(caplog.records) == 1 and "--keep a" in caplog.text
    with pytest.raises(ValueError, match="read-only"):
        net.blobs["c"].data[...] = 0
    assert np.isfinite(net.blobs["loss"].data) and np.isfinite(net.blobs["data"].data).all()
    assert all(isinstance(net.blobs[name], caffe._caffe.Blob) for name in ("data", "label", "loss"))


def test_kept_blobs_are_right_in_both_directions():
    sides = nets("force_backward: true " + NET, keep=["b", "d"])
    for net in sides:
        fill(net, 0, 5)
        net.forward()
        net.backward()
    # single layers in place leave in `b.diff` the gradient of the blob's first value
    for name, values in (("b", "data"), ("d", "data"), ("d", "diff")):
        expected, got = (getattr(net.blobs[name], values) for net in sides)
        assert expected.any()
        np.testing.assert_array_equal(got, expected)


def test_gradients_from_a_kept_blob_on():
    """As images are dreamt: a gradient is written to a blob inside, and backward starts there."""
    sides = nets("force_backward: true " + NET, keep=["b"])
    for net in sides:
        fill(net, 0, 5)
        net.forward(end="b_relu")
        net.blobs["b"].diff[...] = np.random.default_rng(5).standard_normal(net.blobs["b"].diff.shape)
        net.backward(start="b_relu")
    np.testing.assert_array_equal(sides[1].blobs["data"].diff, sides[0].blobs["data"].diff)
    assert sides[0].blobs["data"].diff.any()


def test_a_pass_that_starts_inside_is_refused():
    (_, net) = nets(NET)
    net.forward()
    with pytest.raises(ProblemError, match=r"\[region\] got a forward pass that starts .* at 'b'.*--keep a"):
        net.forward(start="b")
    with pytest.raises(ProblemError, match=r"\[region\] got a backward pass that starts .* at 'd'.*--keep d"):
        net.backward(start="d")
    net.forward()
    net.backward()


def test_layers_out_of_order_are_refused():
    text, _ = swap_net(NET, regions=True)
    head, *layers = text.split("layer {")
    without = "layer {".join([head, *(part for part in layers if '"a_relu"' not in part.split("type")[0])])
    with pytest.raises(ProblemError, match=r"\[region\] got 3 layers of region a before layer 5 .*swap the net again"):
        load(without)


def test_an_error_while_layers_record_leaves_nothing_behind():
    """A threshold has no gradient: it says so when the backward pass is recorded, after other layers were."""
    text = (
        inputs({"x": (3, 4), "label": (3,)})
        + op("InnerProduct", "a", "x", parameters=DENSE) + op("Threshold", "t", "a")
        + op("InnerProduct", "fc", "t", parameters=DENSE) + op("SoftmaxWithLoss", "loss", "fc label")
    )  # fmt: skip
    (_, net) = nets(text)
    for _ in range(2):
        fill(net, 0, 5)
        net.forward()
        with pytest.raises(ProblemError, match=r"\[threshold\] got a gradient to propagate"):
            net.backward()


def test_errors_name_the_labels():
    (_, net) = nets(NET)
    fill(net, 0, 5)
    net.blobs["label"].data[...] = 7
    with pytest.raises(ProblemError, match="labels from 7"):
        net.forward()
    fill(net, 0, 5)
    net.forward()


def test_hidden_blobs_take_no_memory():
    """Caffe allocates a blob's memory when it is first asked for."""
    import resource

    wide = (64, 64, 128, 128)  # 256 MiB a blob
    text = inputs({"x": wide}) + "".join(op("Power", f"p{i}", f"p{i - 1}" if i else "x") for i in range(6))
    net = load(swap_net(text, regions=True)[0], TEST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    net.forward()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 4 * 256 * 1.2, f"{grown:.0f} MiB for an input, an output and an arena"
    del net
    gc.collect()


def test_kept_values_on_a_device_with_memory_of_its_own(monkeypatch):
    here = core.context()
    device = dataclasses.replace(here.device, host_access="staged")
    staged = core.Context(here.cl_context, here.cl_device, here.queue, device=device)
    monkeypatch.setattr(core, "context", lambda *arguments: staged)
    expect_equal(nets("force_backward: true " + NET), passes=2, shown=("loss",))
    assert staged.counters()["bytes_to_device"] > 0


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_values_that_backward_reads_are_in_channels_last(monkeypatch, phase):
    """On a device with matrix units of 16 bits images and the classifier's input are converted, and its gradient.

    In the test phase the first backward computes the forward pass again.
    """
    here = core.context()
    device = dataclasses.replace(here.device, halves=("mma-float16", "mma-bfloat16"))
    sides = []
    for switches in ("-layouts", ""):
        made = core.Context(here.cl_context, here.cl_device, here.queue, device=device)
        monkeypatch.setattr(core, "context", lambda *arguments, made=made: made)
        monkeypatch.setenv("CLGRAFT_GRAPH", switches)
        net = nets(NET, phase, precision="float16")[1]
        found = [run(net, seed, ("loss",)) for seed in range(2)]
        graphs = [graph for graph in (one() for one in made._graphs) if graph is not None]
        sides.append((found, [report.conversions for graph in graphs for report in graph.reports()]))
    (expected, before), (got, after) = sides
    assert not any(before) and after == ([2, 1] if phase == TRAIN else [2, 3, 2, 1])
    for one, two in zip(expected, got):
        for name, values in one.items():
            assert np.linalg.norm(two[name] - values) <= 0.02 * np.linalg.norm(values) + 1e-3, name
