"""Swap of symbols: names stay, parameters load, results agree, and the report tells."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft.core import SelectionError
from tests.mxnet_ops.operator_checks import assert_close, evaluate, numeric_gradients, random


def residual_net() -> mx.sym.Symbol:
    """A net with an operator of every family, some that stay native, and one of each reason to stay."""
    data = mx.sym.var("data")
    x = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=16, no_bias=True, name="conv0")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn0")
    x = mx.sym.Activation(x, act_type="relu", name="relu0")
    y = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=16, num_group=16, no_bias=True, name="dw")
    y = mx.sym.LeakyReLU(y, act_type="elu", name="elu")
    y = mx.sym.Convolution(y, kernel=(1, 1), num_filter=16, name="pw")
    x = mx.sym.elemwise_add(x, y, name="sum")
    x = mx.sym.add_n(x, y, mx.sym.sigmoid(y, name="gate"), name="sum3")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    x = mx.sym.broadcast_mul(x, mx.sym.mean(x, axis=(2, 3), keepdims=True, name="mean"), name="scaled")
    x = mx.sym.clip(x, -4, 4, name="clip")
    x = mx.sym.LeakyReLU(x, act_type="selu", name="selu")
    return mx.sym.FullyConnected(x, num_hidden=5, name="fc")


SHAPE = (3, 4, 8, 10)


def filled(symbol, rng, shape=SHAPE, dtype="float64"):
    shapes, _, states = symbol.infer_shape(data=shape)
    arrays = {n: 0.4 * random(rng, *s, dtype=dtype) for n, s in zip(symbol.list_arguments(), shapes)}
    auxiliary = {n: (0.5 + rng.random(s)).astype(dtype) for n, s in zip(symbol.list_auxiliary_states(), states)}
    return arrays, auxiliary


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
def test_outputs_gradients_and_states_agree(train, rng):
    native = residual_net()
    swapped, _ = ops.swap_symbol(native)
    arrays, auxiliary = filled(native, rng)
    head = [random(rng, 3, 5, dtype="float64")]
    got = evaluate(swapped, arrays, head, train=train, auxiliary=auxiliary)
    expected = evaluate(native, arrays, head, train=train, auxiliary=auxiliary)
    # MXNet's elu and selu compute in single precision
    assert_close(got.outputs[0], expected.outputs[0])
    for name in arrays:
        assert_close(got.gradients[name], expected.gradients[name], what=name)
    for name in auxiliary:
        assert_close(got.auxiliary[name], expected.auxiliary[name], what=name)


def test_names_stay_and_parameters_load(tmp_path, rng):
    native = residual_net()
    swapped, _ = ops.swap_symbol(native)
    assert swapped.list_arguments() == native.list_arguments()
    assert swapped.list_auxiliary_states() == native.list_auxiliary_states()
    assert swapped.list_outputs() == native.list_outputs()
    internals = swapped.get_internals().list_outputs()
    assert len(internals) == len(set(internals))
    assert set(swapped.infer_shape(data=SHAPE)[0]) == set(native.infer_shape(data=SHAPE)[0])
    arrays, states = filled(native, rng, dtype="float32")
    arguments = {k: mx.nd.array(v) for k, v in arrays.items() if k != "data"}
    mx.model.save_checkpoint(str(tmp_path / "m"), 1, native, arguments, {k: mx.nd.array(v) for k, v in states.items()})
    swapped.save(str(tmp_path / "m-symbol.json"))  # the swapped graph, the native parameters
    module = mx.mod.Module.load(str(tmp_path / "m"), 1, data_names=["data"], label_names=None)
    module.bind([("data", SHAPE)], for_training=False)
    module.forward(mx.io.DataBatch([mx.nd.array(arrays["data"])]), is_train=False)
    expected = evaluate(native, arrays, train=False, auxiliary=states).outputs[0]
    assert_close(module.get_outputs()[0].asnumpy(), expected)


def test_report_says_what_was_replaced_and_why_not():
    _, report = ops.swap_symbol(mx.sym.cumsum(residual_net(), name="cumsum"))
    types = {row.name: row.became for row in report.replaced}
    assert types["conv0"] == types["pw"] == "ocl_conv" and types["dw"] == "ocl_depthwise_conv"
    assert types["bn0"] == "ocl_batchnorm" and types["pool"] == "ocl_pooling"
    assert {types[n] for n in ("relu0", "elu", "selu", "gate", "clip")} == {"ocl_activation"}
    assert {types[n] for n in ("sum", "sum3", "scaled")} == {"ocl_eltwise"}
    reasons = {row.name: row.reason for row in report.kept}
    assert types["fc"] == "ocl_fully_connected" and types["mean"] == "ocl_reduce"
    assert "no grafted operator" in reasons["cumsum"]
    text = str(report)
    assert (
        "ocl_depthwise_conv" in text
        and f"{len(types)} replaced, {len(reasons)} left alone" in text
        and "guards" in text
    )


def operators(symbol) -> dict[str, str]:
    nodes = json.loads(symbol.tojson())["nodes"]
    return {n["name"]: n.get("attrs", {}).get("op_type", n["op"]) for n in nodes if n["op"] != "null"}


@pytest.mark.parametrize(
    "select, expected",
    [
        ("BatchNorm", {"bn0"}),
        (["conv*", "sum"], {"conv0", "sum"}),
        (lambda node: node.operator == "Convolution" and node.attributes["kernel"] == "(1, 1)", {"pw"}),
        ([], set()),
    ],
)
def test_select(select, expected):
    symbol, report = ops.swap_symbol(residual_net(), select=select)
    assert {row.name for row in report.replaced} == expected
    assert sum(op.startswith("ocl_") for op in operators(symbol).values()) == len(expected)
    assert all(row.reason == "not selected" for row in report.kept)


def test_learned_slopes_get_their_gradient_where_mxnet_plans_memory(rng):
    # MXNet's own overwrites the gradient that it still needs: numbers decide
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=3, no_bias=True, name="c")
    x = mx.sym.tanh(mx.sym.LeakyReLU(x, act_type="prelu", name="p") * 2)
    swapped, report = ops.swap_symbol(x)
    assert {row.became for row in report.replaced} == {"ocl_conv", "ocl_activation"}
    numeric_gradients(swapped, filled(x, rng, (2, 2, 6, 6))[0], rng)


def test_left_alone_with_a_reason():
    data = mx.sym.var("data")
    index = mx.sym.cast(mx.sym.argmax(data, axis=1), dtype="int32")
    cases = [
        (mx.sym.elemwise_add(index, index, name="n"), "int32"),
        (mx.sym.repeat(mx.sym.sin(data), repeats=2, name="n"), "flattens"),
        (mx.sym.abs(mx.sym.var("s", stype="row_sparse"), name="n"), "sparse"),
        (mx.sym.cumsum(data, name="n"), "no grafted operator"),
    ]
    for symbol, reason in cases:
        swapped, report = ops.swap_symbol(symbol)
        kept = {row.name: row.reason for row in report.kept}
        assert reason in kept["n"], kept
        assert swapped.list_outputs() == symbol.list_outputs()


def test_no_guard_between_clgraft_operators_and_a_second_swap_changes_nothing():
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="c")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, name="b"), act_type="relu", name="r")
    swapped, report = ops.swap_symbol(x)
    assert report.guards == 3  # data, weight, and the output
    again, second = ops.swap_symbol(swapped)
    assert second.guards == 3 and not second.replaced and again.tojson() == swapped.tojson()


def test_swapped_twice_in_parts_is_swapped_at_once(rng):
    native = residual_net()
    part, _ = ops.swap_symbol(native, select="Convolution")
    both, _ = ops.swap_symbol(part)
    arrays, auxiliary = filled(native, rng)
    whole, _ = ops.swap_symbol(native)
    assert both.list_outputs() == native.list_outputs() and both.list_arguments() == native.list_arguments()
    one, other = (evaluate(s, arrays, auxiliary=auxiliary).outputs[0] for s in (both, whole))
    assert (one == other).all()


def test_grouped_convolution_that_only_looks_depthwise(rng):
    # 4 groups and 4 filters, but 8 channels
    native = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, num_group=4, name="c")
    swapped, _ = ops.swap_symbol(native)
    arrays, _ = filled(native, rng, (2, 8, 5, 5))
    assert_close(evaluate(swapped, arrays).outputs[0], evaluate(native, arrays).outputs[0], "float64")


def test_training_with_a_module_follows_the_native_one(rng):
    x, labels = random(rng, 24, *SHAPE[1:]), rng.integers(0, 5, 24).astype("float32")
    native = mx.sym.SoftmaxOutput(residual_net(), name="softmax")
    swapped, _ = ops.swap_symbol(native)
    values, states = filled(native, rng, (6, *SHAPE[1:]), "float32")
    trained = []
    for symbol in (native, swapped):
        iterator = mx.io.NDArrayIter(x, labels, batch_size=6)
        module = mx.mod.Module(symbol)
        module.bind(iterator.provide_data, iterator.provide_label)
        module.init_params(
            arg_params={k: mx.nd.array(v) for k, v in values.items()},
            aux_params={k: mx.nd.array(v) for k, v in states.items()},
            allow_missing=True,
        )
        module.init_optimizer(optimizer_params={"learning_rate": 0.01})
        for batch in iterator:
            module.forward_backward(batch)
            module.update()
        # readers of moving statistics do not wait for the backward that updates them, in MXNet's operators too
        mx.nd.waitall()
        trained.append({k: v.asnumpy() for group in module.get_params() for k, v in group.items()})
    for name, value in trained[0].items():
        assert np.abs(trained[1][name] - value).max() <= 1e-4 * max(1, np.abs(value).max()), name


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("BatchNrom", "got select BatchNrom, expected names or types of the model's operators, such as BatchNorm"),
        (["conv1*"], "such as conv0"),
        (lambda node: False, "got a select that chooses none of 15 operators, expected some"),
    ],
)
def test_a_select_that_matches_nothing_is_an_error(select, words):
    with pytest.raises(SelectionError) as caught:
        ops.swap_symbol(residual_net(), select=select)
    assert words in str(caught.value)


def test_a_pattern_that_matches_nothing_beside_one_that_does_is_a_note():
    _, report = ops.swap_symbol(residual_net(), select=iter(["bn0", "bn7"]))
    assert [row.name for row in report.replaced] == ["bn0"]
    assert str(report).endswith("\nnote: no operator matches bn7; nearest: bn0")


@pytest.mark.parametrize("regions", [False, True])
def test_a_symbol_that_was_swapped_before_says_so(regions):
    swapped, report = ops.swap_symbol(residual_net(), regions=regions)
    assert "already swapped" not in str(report)
    _, again = ops.swap_symbol(swapped)
    assert again.before > 0 and "note: already swapped: " in str(again)
    with pytest.raises(SelectionError, match="already swapped"):
        ops.swap_symbol(swapped, select="Convolution")
