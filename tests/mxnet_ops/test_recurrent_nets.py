"""Unrolled recurrent nets, whose begin state gets its batch from operators after it, bind and agree when swapped."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import MODES, assert_close, evaluate, random

SIZE, INPUTS, BATCH = 6, 5, 2


def stacked() -> mx.rnn.BaseRNNCell:
    cell = mx.rnn.SequentialRNNCell()
    cell.add(mx.rnn.LSTMCell(SIZE, prefix="a_"))
    cell.add(mx.rnn.DropoutCell(0.0, prefix="b_"))
    cell.add(mx.rnn.ResidualCell(mx.rnn.GRUCell(SIZE, prefix="c_")))
    return cell


CELLS = {
    "lstm": lambda: mx.rnn.LSTMCell(SIZE, prefix="a_"),
    "gru": lambda: mx.rnn.GRUCell(SIZE, prefix="a_"),
    "rnn": lambda: mx.rnn.RNNCell(SIZE, prefix="a_"),
    "stacked": stacked,
    "both ways": lambda: mx.rnn.BidirectionalCell(
        mx.rnn.LSTMCell(SIZE, prefix="a_"), mx.rnn.GRUCell(SIZE, prefix="b_")
    ),
    "unfused": lambda: mx.rnn.FusedRNNCell(SIZE, num_layers=2, mode="lstm", prefix="a_").unfuse(),
}


@pytest.mark.parametrize("regions", [False, True], ids=["single", "regions"])
@pytest.mark.parametrize(
    ("name", "length"), [*((name, 3) for name in CELLS), ("lstm", 70), ("gru", 70)], ids=lambda value: str(value)
)
def test_symbols(name, length, regions, rng):
    outputs, _ = CELLS[name]().unroll(
        length, inputs=mx.sym.var("data", dtype="float32"), layout="NTC", merge_outputs=True
    )
    swapped, report = swap_symbol(outputs, regions=regions)
    assert len(report.replaced) > 2 * length, report
    shapes, out_shapes, _ = outputs.infer_shape(data=(BATCH, length, INPUTS))
    assert swapped.infer_shape(data=(BATCH, length, INPUTS))[:2] == (shapes, out_shapes)
    arrays = {key: 0.3 * random(rng, *shape) for key, shape in zip(outputs.list_arguments(), shapes)}
    heads = [random(rng, *shape) for shape in out_shapes]
    got, expected = evaluate(swapped, arrays, heads), evaluate(outputs, arrays, heads)
    assert_close(got.outputs[0], expected.outputs[0])
    for key in arrays:
        assert_close(got.gradients[key], expected.gradients[key], what=key)


def test_what_reads_the_begin_state_stays_native():
    outputs, _ = CELLS["lstm"]().unroll(2, inputs=mx.sym.var("data"), layout="NTC", merge_outputs=True)
    _, report = swap_symbol(outputs, regions=False)
    kept = {row.name for row in report.kept if "follow from operators after it" in row.reason}
    assert kept == {"a_t0_h2h"}, report


class Unrolled(gluon.HybridBlock):
    """A cell over a few time steps."""

    def __init__(self, cell: str, length: int) -> None:
        super().__init__(prefix="net_")
        self.length = length
        with self.name_scope():
            self.cell = getattr(gluon.rnn, cell)(SIZE, input_size=INPUTS)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(self.length, x, layout="NTC", merge_outputs=True)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("cell", "length"),
    [("LSTMCell", 3), ("GRUCell", 3), ("RNNCell", 3), ("LSTMCell", 70)],
    ids=lambda value: str(value),
)
def test_gluon(cell, length, mode, rng):
    x = mx.nd.array(random(rng, BATCH, length, INPUTS))
    results = []
    for swap in (False, True):
        mx.random.seed(3)
        net = Unrolled(cell, length)
        net.initialize(mx.init.Normal(0.3))
        if swap:
            swap_block(net)
        if mode != "plain":
            net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        x.attach_grad()
        with autograd.record():
            y = net(x)
        y.backward()
        gradients = {name: p.grad().asnumpy() for name, p in net.collect_params().items()}
        results.append({"y": y.asnumpy(), "x": x.grad.asnumpy(), **gradients})
    for name, value in results[0].items():
        assert_close(results[1][name], value, what=name)
    assert np.abs(results[0]["x"]).max() > 0


@pytest.mark.parametrize(("layer", "known"), [("LSTM", True), ("GRU", False), ("RNN", True)])
def test_fused_layers_of_gluon_are_in_the_region(layer, known, rng):
    """Whether the number of inputs is known or not; parameters of unknown shape are joined by MXNet."""
    data, found = mx.nd.array(random(rng, BATCH, 4, 3)), []
    for swap in (False, True):
        mx.random.seed(3)
        net = gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(gluon.nn.Dense(INPUTS, flatten=False, activation="tanh"))
            keys = {"num_layers": 2, "bidirectional": True, "layout": "NTC", "input_size": INPUTS * known}
            net.add(getattr(gluon.rnn, layer)(SIZE, **keys), gluon.nn.Dense(3, flatten=False))
        net.initialize(mx.init.Xavier())
        if swap:
            report = swap_block(net, regions=True)
            assert len(report.regions) == 1 and "RNN" not in {row.operator for row in report.kept}, report
            assert not known or not report.kept
        net.hybridize()
        data.attach_grad()
        with autograd.record():
            y = net(data)
        y.backward()
        gradients = {name: p.grad().asnumpy() for name, p in net.collect_params().items()}
        found.append({"y": y.asnumpy(), "data": data.grad.asnumpy(), **gradients})
    for name, expected in found[0].items():
        assert np.abs(expected).max() > 0
        assert_close(found[1][name], expected, what=name)


def test_dropout_between_fused_layers(rng):
    """When training, random numbers are clgraft's own; otherwise nothing is dropped."""
    data, found = mx.nd.array(random(rng, BATCH, 4, INPUTS)), []
    for swap in (False, True):
        mx.random.seed(3)
        net = gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(gluon.nn.Dense(INPUTS, flatten=False, in_units=INPUTS))
            net.add(gluon.rnn.GRU(SIZE, num_layers=2, dropout=0.5, layout="NTC", input_size=INPUTS))
            net.add(gluon.nn.Dense(3, flatten=False, in_units=SIZE))
        net.initialize(mx.init.Xavier())
        if swap:
            assert not swap_block(net, regions=True).kept
        net.hybridize()
        found.append(net(data).asnumpy())
    assert_close(found[1], found[0])
    trained = []
    for _ in range(2):
        with autograd.record():
            y = net(data)
        y.backward()
        trained.append(y.asnumpy())
        assert all(np.isfinite(p.grad().asnumpy()).all() for p in net.collect_params().values())
    assert np.abs(trained[0] - trained[1]).max() > 1e-3


def block_step(swap: bool, layer: str, states: bool, keys: dict, x: np.ndarray) -> list[np.ndarray]:
    """Return outputs and gradients of a recurrent layer that is hybridized alone."""
    mx.random.seed(3)
    net = getattr(gluon.rnn, layer)(SIZE, num_layers=2, input_size=INPUTS, prefix="net_", **keys)
    net.initialize(mx.init.Normal(0.3))
    if swap:
        swap_block(net, regions=True)
    net.hybridize()
    data = mx.nd.array(x)
    data.attach_grad()
    given = [net.begin_state(BATCH, func=lambda shape, **_: mx.nd.full(shape, 0.3))] if states else []
    with autograd.record():
        y = net(data, *given)
        outputs = [y[0], *y[1]] if states else [y]
        loss = sum((output * output).sum() for output in outputs)
    loss.backward()
    if swap:
        nodes = json.loads(net._cached_graph[1].tojson())["nodes"]
        assert [n["attrs"]["op_type"] for n in nodes if n["op"] != "null"] == ["ocl_region"]
    arrays = [*outputs, data.grad, *(one.grad() for _, one in sorted(net.collect_params().items()))]
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(
    ("layer", "keys"),
    [("LSTM", {}), ("LSTM", {"bidirectional": True}), ("GRU", {"layout": "NTC"}), ("RNN", {})],
    ids=str,
)
def test_a_fused_layer_that_is_a_block_of_its_own(layer, keys, states, rng):
    x = random(rng, *((BATCH, 4) if keys.get("layout") == "NTC" else (4, BATCH)), INPUTS)
    found, expected = (block_step(swap, layer, states, keys, x) for swap in (True, False))
    for place, (one, other) in enumerate(zip(found, expected)):
        assert_close(one, other, what=f"array {place}")
