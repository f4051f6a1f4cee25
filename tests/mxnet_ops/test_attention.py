"""Attention as GluonNLP's transformers have it: one region, with lengths that are whole numbers in MXNet."""

from __future__ import annotations

import json
from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import clgraft
from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops.operator_checks import assert_close, compare, random

sym = mx.sym
SHAPE = (2, 3, 5)


def lengths_of(*sizes: int, most: int, rng) -> np.ndarray:
    return rng.integers(0, most + 1, sizes).astype("int32")


def inside(made):
    """Return an operator between two others, so that a region is worth while."""
    return sym.Activation(made(sym.Activation(sym.var("data"), act_type="tanh")), act_type="softrelu", name="last")


def one_region(native: mx.sym.Symbol) -> tuple[mx.sym.Symbol, list[str]]:
    """Return the symbol with its region, and the operators that are not in it."""
    swapped, report = swap_symbol(native, regions=True)
    nodes = json.loads(swapped.tojson())["nodes"]
    assert len(report.regions) == 1, report
    return swapped, [node["op"] for node in nodes if node["op"] not in ("null", "Custom")]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("keys", [{}, {"axis": 1}, {"axis": 0, "temperature": 2.5}, {"temperature": -1.5}], ids=str)
def test_a_softmax_up_to_lengths(keys, dtype, rng):
    axis = keys.get("axis", -1) % 3
    native = inside(lambda x: sym.softmax(x, length=sym.var("length", dtype=dtype), use_length=True, **keys))
    swapped, outside = one_region(native)
    assert outside == ["Cast"]
    lengths = lengths_of(*SHAPE[:axis], *SHAPE[axis + 1 :], most=SHAPE[axis], rng=rng)
    lengths.flat[:2] = 0, SHAPE[axis]
    arrays = {"data": random(rng, *SHAPE), "length": lengths.astype(dtype)}
    wanted = [{"data": request, "length": "null"} for request in ("write", "add")]
    compare(swapped, native, arrays, rng, requests=wanted)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float16"])
@pytest.mark.parametrize("keys", [{}, {"axis": 1, "value": -2.5}], ids=str)
def test_sequences_that_end_at_lengths(keys, dtype, rng):
    axis = keys.get("axis", 0)
    length = sym.var("length", dtype=dtype)
    native = inside(lambda x: sym.SequenceMask(x, sequence_length=length, use_sequence_length=True, **keys))
    swapped, outside = one_region(native)
    assert outside == ["Cast"]
    lengths = lengths_of(SHAPE[1 - axis], most=SHAPE[axis], rng=rng).astype(dtype)
    lengths[:2] = 0, SHAPE[axis]
    if "float" in dtype:
        lengths[-1] = 1.75  # MXNet cuts fractions off
    wanted = [{"data": request, "length": "null"} for request in ("write", "add")]
    compare(swapped, native, {"data": random(rng, *SHAPE), "length": lengths}, rng, requests=wanted)


def test_lengths_beyond_a_sequence_end_at_it(rng):
    """MXNet writes outside of its arrays then."""
    length = sym.var("length", dtype="int32")
    swapped, _ = one_region(
        inside(lambda x: sym.SequenceMask(x, sequence_length=length, use_sequence_length=True, value=9))
    )
    data = random(rng, 4, 3, 2)
    (got,) = swapped.eval(data=mx.nd.array(data), length=mx.nd.array([-2, 9, 2], dtype="int32"))
    x = np.tanh(data)
    x[:, 0], x[2:, 2] = 9, 9
    assert_close(got.asnumpy(), np.logaddexp(0, x))


def test_lengths_of_one_region_are_cast_once(rng):
    length = sym.BlockGrad(sym.Reshape(sym.var("length", dtype="int32"), shape=(2, 3)))

    def made(x):
        return sym.softmax(sym.relu(sym.softmax(x, length=length, use_length=True)), length=length, use_length=True)

    native = inside(made)
    swapped, outside = one_region(native)
    assert sorted(outside) == ["BlockGrad", "Cast", "Reshape"]
    lengths = lengths_of(6, most=5, rng=rng)
    wanted = [{"data": "write", "length": "null"}]
    compare(swapped, native, {"data": random(rng, *SHAPE), "length": lengths}, rng, requests=wanted)


def test_half_precision_with_lengths(rng):
    length = sym.var("length", dtype="int32")
    native = inside(lambda x: sym.softmax(x, length=length, use_length=True))
    swapped, _ = one_region(native)
    data, lengths = random(rng, *SHAPE, dtype="float16"), lengths_of(2, 3, most=5, rng=rng)
    wanted = [{"data": request, "length": "null"} for request in ("write", "add")]
    compare(swapped, native, {"data": data, "length": lengths}, rng, dtype="float16", requests=wanted)


def test_what_a_softmax_refuses_stays_mxnets():
    data, length = sym.tanh(sym.var("data")), sym.var("length", dtype="int32")
    for keys in ({"use_length": True, "length": length, "dtype": "float16"}, {"dtype": "float64"}):
        _, report = swap_symbol(sym.tanh(sym.softmax(data, **keys)), regions=True)
        assert [row.operator for row in report.kept] == ["softmax"] and "dtype" in report.kept[0].reason
    _, report = swap_symbol(sym.tanh(sym.softmax(data, length=length, use_length=True)), regions=False)
    assert [row.operator for row in report.kept] == ["softmax"]


def test_shapes_that_do_not_fit_are_named():
    heads = inside(lambda x: sym.contrib.interleaved_matmul_selfatt_qk(x, heads=2))
    swapped, _ = one_region(heads)
    with pytest.raises(mx.MXNetError, match=r"3 parts of 2 heads of shape \(2, 3, 5\)"):
        swapped.infer_shape(data=SHAPE)
    native = inside(lambda x: sym.softmax(x, length=sym.var("length", dtype="int32"), use_length=True))
    swapped, _ = one_region(native)
    with pytest.raises(mx.MXNetError, match=r"lengths of shape \(3, 2\), expected \(2, 3, 5\) without axis 2"):
        swapped.infer_shape(data=SHAPE, length=(3, 2))


class Cell(gluon.HybridBlock):
    """A layer of a transformer, with the operators of GluonNLP's BERT cell."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        with self.name_scope():
            self.projected, self.merged = nn.Dense(3 * units, flatten=False), nn.Dense(units, flatten=False)
            self.wide, self.narrow = nn.Dense(2 * units, flatten=False), nn.Dense(units, flatten=False)
            self.norms = nn.HybridSequential()
            self.norms.add(nn.LayerNorm(), nn.LayerNorm())

    def hybrid_forward(self, F, x, lengths):
        qkv = self.projected(x)
        scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=self.heads)
        rows = F.reshape(F.broadcast_axis(F.expand_dims(lengths, axis=1), axis=1, size=self.heads), shape=(-3, 0))
        weights = F.softmax(scores, length=rows, use_length=True, axis=-1)
        values = F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=self.heads)
        x = self.norms[0](x + self.merged(values))
        return self.norms[1](x + self.narrow(F.LeakyReLU(self.wide(x), act_type="gelu")))


class Encoder(gluon.HybridBlock):
    """Some layers on sequences (steps, batch, units) that end at lengths."""

    def __init__(self, layers: int = 2, units: int = 12, heads: int = 3) -> None:
        super().__init__(prefix="net_")
        self.count = layers
        with self.name_scope():
            self.projected = nn.Dense(units, flatten=False)
            for number in range(layers):
                setattr(self, f"cell{number}", Cell(units, heads))

    def hybrid_forward(self, F, x, lengths):
        steps = F.reshape(F.zeros_like(F.contrib.arange_like(x, axis=0)), shape=(1, -1))
        rows = F.cast(F.broadcast_add(F.reshape(lengths, shape=(-1, 1)), steps), "int32")
        x = F.SequenceMask(self.projected(x), sequence_length=lengths, use_sequence_length=True)
        for number in range(self.count):
            x = getattr(self, f"cell{number}")(x, rows)
        return x


def trained(swap: bool, x: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return the output and all gradients of a step of the encoder."""
    mx.random.seed(5)
    net = Encoder()
    net.initialize(mx.init.Xavier())
    data, ends = mx.nd.array(x), mx.nd.array(lengths)
    with autograd.pause():
        net(data, ends)
    if swap:
        swap_block(net, regions=True)
    net.hybridize()
    data.attach_grad()
    with autograd.record():
        y = net(data, ends)
    if swap:
        nodes = json.loads(net._cached_graph[1].tojson())["nodes"]
        kinds = Counter(node.get("attrs", {}).get("op_type", node["op"]) for node in nodes)
        assert kinds["ocl_region"] == 1 and not {"softmax", "SequenceMask", "FullyConnected"} & set(kinds), kinds
    y.backward(mx.nd.array(np.cos(np.arange(y.size)).reshape(y.shape)))
    gradients = [parameter.grad().asnumpy() for _, parameter in sorted(net.collect_params().items())]
    return [y.asnumpy(), data.grad.asnumpy(), *gradients]


@pytest.mark.parametrize("steps", [1, 7])
def test_an_encoder_of_gluon_is_one_region(steps, rng):
    x, lengths = random(rng, steps, 4, 12), np.array([steps, 1, max(1, steps // 2), steps], "float32")
    for place, (got, expected) in enumerate(zip(trained(True, x, lengths), trained(False, x, lengths))):
        assert_close(got, expected, what=f"array {place}")


def test_a_session_without_mxnet_has_lengths(tmp_path, rng):
    qkv, length = sym.var("data"), sym.var("length", dtype="int32")
    scores = sym.contrib.interleaved_matmul_selfatt_qk(qkv, heads=2)
    weights = sym.softmax(scores, length=length, use_length=True)
    native = sym.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=2, name="y")
    native.save(str(tmp_path / "net-symbol.json"))
    data, lengths = random(rng, 5, 3, 12), lengths_of(6, 5, most=5, rng=rng)
    (expected,) = native.eval(data=mx.nd.array(data), length=mx.nd.array(lengths, dtype="int32"))
    session = clgraft.load(str(tmp_path / "net-symbol.json"))
    (got,) = session.run({"data": data, "length": lengths.astype("float32")}).values()
    assert_close(np.asarray(got), expected.asnumpy())
