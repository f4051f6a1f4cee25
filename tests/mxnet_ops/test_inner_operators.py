"""Operators that only regions have: they compute what MXNet's own do, and split no region."""

from __future__ import annotations

import itertools
import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from clgraft.mxnet_ops import swap_block, swap_symbol
from clgraft.mxnet_ops.operators.inner import INNER
from clgraft.mxnet_ops.operators.inner_shapes import reshaped
from tests.mxnet_ops.operator_checks import assert_close, compare, random

sym = mx.sym
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal")
SHAPE = (2, 6, 3, 4)


def real(x):
    """Return an operator that takes real numbers alone, so that what is around it is known to be real."""
    return sym.Activation(x, act_type="tanh")


def rows(x, columns, count=-1):
    """Return positive numbers as rows of boxes by their middle, of one image each."""
    return sym.Reshape(sym.sigmoid(x), shape=(0, count, columns))


def part(x, begin, shape):
    """Return some of the numbers, as a parameter."""
    flat = sym.Reshape(x, shape=(-1,))
    return sym.Reshape(sym.slice_axis(flat, axis=0, begin=begin, end=begin + int(np.prod(shape))), shape=shape)


def recurrent(x, mode, count, **keys):
    states = [part(x, 3 * i, (1 + keys.get("bidirectional", 0), 6, 2)) for i in range(1 + (mode == "lstm"))]
    names = dict(zip(("state", "state_cell"), states))
    data = sym.Reshape(x, shape=(0, 0, -1))
    return sym.RNN(data, parameters=part(x, 0, (count,)), mode=mode, state_size=2, num_layers=1, **names, **keys)


# what stands between two operators of a region, by the name of the operator that it is about
BETWEEN = {
    "Reshape": [
        lambda x: sym.Reshape(x, shape=(-1, 12)),
        lambda x: sym.Reshape(x, shape=(0, -4, 2, 3, -2)),
        lambda x: sym.Reshape(x, shape=(-3, 0, -1), reverse=True),
    ],
    "Flatten": [lambda x: sym.Flatten(x)],
    "expand_dims": [lambda x: sym.expand_dims(x, axis=0), lambda x: sym.expand_dims(x, axis=-1)],
    "squeeze": [
        lambda x: sym.squeeze(sym.sum(x, axis=1, keepdims=True)),
        lambda x: sym.squeeze(sym.sum(x, axis=(1, 3), keepdims=True), axis=(1,)),
    ],
    "reshape_like": [
        lambda x: sym.reshape_like(sym.Flatten(x), real(x)),
        lambda x: sym.reshape_like(
            sym.Reshape(x, shape=(0, 0, -1)), real(x), lhs_begin=2, lhs_end=3, rhs_begin=2, rhs_end=4
        ),
    ],
    "_copy": [lambda x: sym.identity(x)],
    "BlockGrad": [lambda x: sym.elemwise_add(sym.BlockGrad(x), x)],
    "SliceChannel": [
        lambda x: sym.SliceChannel(x, num_outputs=1),
        lambda x: sym.SliceChannel(sym.sum(x, axis=2, keepdims=True), num_outputs=1, axis=2, squeeze_axis=True),
    ],
    "zeros_like": [lambda x: sym.elemwise_add(sym.zeros_like(x), x)],
    "ones_like": [lambda x: sym.elemwise_mul(sym.ones_like(x) * 3, x)],
    "_zeros": [lambda x: sym.broadcast_add(x, sym.zeros(shape=(1, 6, 1, 1)))],
    "_ones": [lambda x: sym.broadcast_sub(x, sym.ones(shape=(2, 6, 1, 4)))],
    "_arange": [
        lambda x: sym.broadcast_mul(x, sym.arange(4)),
        lambda x: sym.broadcast_add(x, sym.arange(1, 2.4, 0.5, name="range").reshape((3, 1))),
    ],
    "slice_like": [
        lambda x: sym.slice_like(x, sym.Pooling(x, kernel=(2, 2), pool_type="avg")),
        lambda x: sym.slice_like(x, sym.Pooling(x, kernel=(2, 2), pool_type="avg"), axes=(-1,)),
    ],
    "broadcast_like": [lambda x: sym.broadcast_like(sym.sum(x, axis=(1, 2), keepdims=True), x)],
    "broadcast_axis": [
        lambda x: sym.broadcast_axis(sym.sum(x, axis=(1, 2), keepdims=True), axis=(1, 2), size=(5, 2)),
    ],
    "broadcast_to": [lambda x: sym.broadcast_to(sym.sum(x, axis=1, keepdims=True), shape=(0, 3, 0, 4))],
    "batch_dot": [
        lambda x: sym.batch_dot(sym.Reshape(x, shape=(0, 0, -1)), sym.Reshape(x, shape=(0, -1, 6))),
        lambda x: sym.batch_dot(*(sym.Reshape(y, shape=(-3, 0, 0)) for y in (x, real(x))), transpose_a=True),
        lambda x: sym.batch_dot(*(sym.Reshape(y, shape=(-3, 0, 0)) for y in (x, real(x))), transpose_b=True),
        lambda x: sym.batch_dot(
            sym.Reshape(x, shape=(0, -1, 6)), sym.Reshape(x, shape=(0, 6, -1)), transpose_a=True, transpose_b=True
        ),
    ],
    "where": [
        lambda x: sym.where(x > 0, x * 2, sym.relu(x)),
        lambda x: sym.where(sym.sum(x, axis=(1, 2, 3)) > 0, x, -x),
    ],
    "_full": [lambda x: sym.broadcast_mul(x, sym.full(shape=(1, 6, 1, 1), val=2.5))],
    "reverse": [lambda x: sym.reverse(x, axis=(1, 3))],
    "dot": [
        lambda x: sym.dot(sym.Reshape(x, shape=(-3, -3)), sym.Reshape(real(x), shape=(-3, -3)), transpose_b=True),
        lambda x: sym.dot(*[sym.Reshape(x, shape=(12, 12))] * 2, transpose_a=True, transpose_b=True),
    ],
    "take": [lambda x: sym.take(x, 1.3 + sym.abs(sym.mean(x, axis=(0, 1, 2))), axis=1)],
    "pick": [
        lambda x: sym.broadcast_mul(x, sym.pick(x, 1.3 + 9 * sym.mean(x, axis=1), axis=1, keepdims=True)),
        lambda x: sym.pick(x, 9 * sym.sum(x, axis=(3,), keepdims=True), mode="wrap"),
        lambda x: sym.pick(x, -9 * sym.mean(x, axis=2), axis=-2),
    ],
    "Embedding": [
        lambda x: sym.Embedding(
            sym.BlockGrad(9 * sym.abs(x)), sym.Reshape(real(x), shape=(-1, 4)), input_dim=36, output_dim=4, name="e"
        )
    ],
    "topk": [
        lambda x: sym.topk(x, k=2, axis=1, ret_typ="value"),
        lambda x: sym.topk(x, k=5, axis=None, ret_typ="mask") * x,
        lambda x: sym.topk(x, k=2, ret_typ="value", is_ascend=True),
    ],
    "Cast": [lambda x: sym.Cast(x, dtype="float32")],
    "floor": [lambda x: sym.floor(3 * x) + x],
    "ceil": [lambda x: sym.ceil(3 * x) + x],
    "rint": [lambda x: sym.rint(3 * x) + x],
    "round": [lambda x: sym.round(3 * x) + x],
    "trunc": [lambda x: sym.trunc(3 * x) + x],
    "fix": [lambda x: sym.fix(3 * x) + x],
    "RNN": [
        lambda x: recurrent(x, "lstm", 128),
        lambda x: recurrent(x, "gru", 96, state_outputs=True)[0],
        lambda x: sym.broadcast_add(*[recurrent(x, "rnn_tanh", 64, state_outputs=True, bidirectional=1)[0]] * 2),
        lambda x: recurrent(x, "rnn_relu", 32),
    ],
    "_contrib_box_nms": [
        lambda x: sym.contrib.box_nms(rows(x, 6), overlap_thresh=0.3, in_format="center", out_format="center"),
        lambda x: sym.contrib.box_nms(rows(x, 6), topk=7, valid_thresh=0.4, in_format="center", out_format="center"),
    ],
    "_contrib_box_decode": [
        lambda x: sym.contrib.box_decode(
            rows(x, 4), sym.slice_axis(rows(real(x), 4), axis=0, begin=0, end=1), 0.1, 0.1, 0.2, 0.2
        )
    ],
    "_contrib_interleaved_matmul_selfatt_qk": [
        lambda x: sym.contrib.interleaved_matmul_selfatt_qk(sym.Reshape(x, shape=(3, 4, 12)), heads=2)
    ],
    "_contrib_interleaved_matmul_selfatt_valatt": [
        lambda x: sym.contrib.interleaved_matmul_selfatt_valatt(
            sym.Reshape(x, shape=(3, 4, 12)), sym.Reshape(sym.slice_axis(x, axis=3, begin=0, end=2), shape=(8, 3, 3)), 2
        )
    ],
    "_contrib_interleaved_matmul_encdec_qk": [
        lambda x: sym.contrib.interleaved_matmul_encdec_qk(
            sym.slice_axis(sym.Reshape(x, shape=(2, 3, 24)), axis=2, begin=0, end=12),
            sym.Reshape(real(x), shape=(-1, 3, 24)),
            heads=3,
        )
    ],
    "_contrib_interleaved_matmul_encdec_valatt": [
        lambda x: sym.contrib.interleaved_matmul_encdec_valatt(
            sym.Reshape(x, shape=(4, 3, 12)), part(real(x), 5, (6, 3, 4)), heads=2
        )
    ],
    "_contrib_div_sqrt_dim": [lambda x: sym.contrib.div_sqrt_dim(x)],
    "SequenceMask": [lambda x: sym.SequenceMask(x) + x],
    **{f"_{n}": [lambda x, n=n: getattr(sym._internal, f"_{n}")(sym.relu(x), sym.relu(-x)) + x] for n in COMPARISONS},
    **{
        f"broadcast_{n}": [
            lambda x, n=n: getattr(sym, f"broadcast_{n}")(sym.relu(x), sym.max(-x, axis=1, keepdims=True)) + x
        ]
        for n in COMPARISONS
    },
    "_equal_scalar": [lambda x: (sym.relu(x) == 0) * x],
    "_not_equal_scalar": [lambda x: (sym.relu(x) != 0) * x],
    "_greater_scalar": [lambda x: (x > 0.25) * x],
    "_greater_equal_scalar": [lambda x: (x >= 0.25) * x],
    "_lesser_scalar": [lambda x: (x < 0.25) * x],
    "_lesser_equal_scalar": [lambda x: (x <= 0.25) * x],
}
DECLARED = ("Cast",)  # operators that are served where the type is known
OUTSIDE = (  # of regions; MXNet leaves casts of its automatic mixed precision out of the text of a symbol
    *("_contrib_ROIAlign", "_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution"),
    *("ROIPooling", "amp_cast", "amp_multicast", "argsort", "gather_nd", "repeat", "shape_array"),
    *("_mod", "_mod_scalar", "broadcast_mod"),
)
WITH_LENGTHS = ("softmax",)  # which are whole numbers: in test_attention
CASES = [(name, number) for name, made in BETWEEN.items() for number in range(len(made))]


def around(between, **declared) -> mx.sym.Symbol:
    return sym.Activation(between(real(sym.var("data", **declared))), act_type="softrelu", name="last")


def regions_of(symbol: mx.sym.Symbol) -> tuple[mx.sym.Symbol, list[list[str]], list[str]]:
    """Return the symbol with regions, what is in each, and the operators that stay MXNet's."""
    swapped, report = swap_symbol(symbol, regions=True)
    ours = [n for n in json.loads(swapped.tojson())["nodes"] if n.get("attrs", {}).get("op_type") == "ocl_region"]
    assert len(ours) == len(report.regions)
    return swapped, list(report.regions.values()), [row.operator for row in report.kept]


def test_every_operator_is_tried():
    assert {*BETWEEN, *OUTSIDE, *WITH_LENGTHS} == set(INNER)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_an_operator_in_a_region(name, number, rng):
    native = around(BETWEEN[name][number], **({"dtype": "float32"} if name in DECLARED else {}))
    assert f'"{name}"' in native.tojson()
    swapped, regions, kept = regions_of(native)
    assert len(regions) == 1 and not kept
    compare(swapped, native, {"data": random(rng, *SHAPE)}, rng)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", ["Reshape", "slice_like", "broadcast_like", "ones_like", "where", "_greater_scalar"])
def test_other_dtypes(name, dtype, rng):
    native = around(BETWEEN[name][0])
    data = random(rng, *SHAPE, dtype=dtype)
    compare(regions_of(native)[0], native, {"data": data}, rng, dtype=dtype, requests=["write", "add"])


@pytest.mark.parametrize("seed", range(12))
def test_generated_graphs_are_one_region(seed, rng):
    """A chain of views between operators that compute, each with a side branch that comes back."""
    choice = np.random.default_rng(seed)
    names = ["Reshape", "Flatten", "expand_dims", "_copy", "zeros_like", "ones_like", "reshape_like", "SliceChannel"]
    x = real(sym.var("data"))
    for _ in range(choice.integers(2, 7)):
        x = BETWEEN[choice.choice(names)][0](x) if choice.random() < 0.3 else sym.Reshape(x, shape=SHAPE)
        x = sym.Reshape(x, shape=SHAPE)
        kind = choice.integers(4)
        if kind == 0:
            x = sym.elemwise_add(x, sym.Reshape(real(sym.Flatten(x)), shape=SHAPE))
        elif kind == 1:
            x = sym.broadcast_mul(x, sym.expand_dims(sym.mean(x, axis=3), axis=3))
        elif kind == 2:
            x = sym.where(x > 0, x, sym.zeros_like(x))
        else:
            x = sym.elemwise_mul(sym.identity(x), real(x))
    native = sym.Activation(x, act_type="tanh", name="last")
    swapped, regions, kept = regions_of(native)
    assert len(regions) == 1 and not kept
    compare(swapped, native, {"data": random(rng, *SHAPE)}, rng)


CODES = [
    *itertools.product((0, -1, 3), (-1, 2, -3), (-2,)),
    *((-4, 2, -1, -2), (-4, -1, 3, 0), (0, -4, 1, -1, 0), (-3, -3), (0, -3, 0), (-2, 1), (-2, 1, 1), (6, 1, -1)),
    *((-1,), (24, -1), (0, 0, 0, -1), (-1, 0), (4, 0, 0), (3, 8), (12, -4, 1, 2)),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_shapes_of_reshape_are_mxnets(codes, reverse):
    for data in ((4, 2, 3), (2, 3, 4, 1), (24,)):
        try:
            _, (expected,), _ = sym.Reshape(sym.var("x"), shape=codes, reverse=reverse).infer_shape(x=data)
        except mx.MXNetError:
            continue
        if np.prod(expected) == np.prod(data) and min(expected) > 0:
            assert reshaped(data, codes, reverse) == expected, data


def shuffle(x):
    """Return channels in another order, as ShuffleNet has it."""
    x = sym.SwapAxis(sym.Reshape(x, shape=(0, -4, 2, -1, -2)), dim1=1, dim2=2)
    return sym.Reshape(x, shape=(0, -3, -2))


def squeeze_and_excitation(x):
    pooled = sym.Flatten(sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)))
    scale = sym.FullyConnected(sym.relu(sym.FullyConnected(pooled, num_hidden=3)), num_hidden=6)
    return sym.broadcast_mul(x, sym.expand_dims(sym.expand_dims(sym.sigmoid(scale), axis=2), axis=2))


@pytest.mark.parametrize("block", [shuffle, squeeze_and_excitation])
def test_blocks_of_known_nets_are_one_region(block, rng):
    x = sym.Convolution(sym.var("data"), kernel=(3, 3), pad=(1, 1), num_filter=6, name="c")
    x = sym.BatchNorm(block(sym.relu(x)), fix_gamma=False, name="b")
    native = sym.FullyConnected(sym.Flatten(x), num_hidden=4, name="d")
    swapped, regions, kept = regions_of(native)
    assert len(regions) == 1 and not kept
    shapes, _, states = native.infer_shape(data=SHAPE)
    arrays = {n: 0.3 * random(rng, *shape, dtype="float64") for n, shape in zip(native.list_arguments(), shapes)}
    own = {name: np.ones(shape) for name, shape in zip(native.list_auxiliary_states(), states)}
    compare(swapped, native, arrays, rng, dtype="float64", auxiliary=own, requests=["write", "add"])


@pytest.mark.parametrize("cell", ["GRUCell", "LSTMCell", "RNNCell"])
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_an_unrolled_recurrent_net_is_one_region(cell, batch, rng):
    """Its begin state is an array of zeros whose batch follows from what reads it."""
    outputs, _ = getattr(mx.rnn, cell)(5, prefix="r_").unroll(
        4, inputs=sym.var("data", dtype="float32"), layout="NTC", merge_outputs=True
    )
    swapped, regions, kept = regions_of(outputs)
    assert len(regions) == 1 and not kept
    shapes, outs, _ = outputs.infer_shape(data=(batch, 4, 3))
    assert swapped.infer_shape(data=(batch, 4, 3))[:2] == (shapes, outs)
    arrays = {name: 0.3 * random(rng, *shape) for name, shape in zip(outputs.list_arguments(), shapes)}
    compare(swapped, outputs, arrays, rng, requests=["write", "add"])


class Unrolled(gluon.HybridBlock):
    """A cell over some time steps."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.first, self.cell = nn.Dense(6, flatten=False), gluon.rnn.GRUCell(6)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(3, self.first(x), layout="NTC", merge_outputs=True)[0]


def test_an_unrolled_block_of_gluon(rng):
    found = []
    data = random(rng, 2, 3, 4)
    for swap in (False, True):
        mx.random.seed(3)
        net = Unrolled()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        if swap:
            report = swap_block(net)
            assert len(report.regions) == 1, report
        x = mx.nd.array(data)
        x.attach_grad()
        with autograd.record():
            y = net(x)
        y.backward()
        found.append((y.asnumpy(), x.grad.asnumpy()))
    for got, expected in zip(found[1], found[0]):
        assert_close(got, expected)


def test_views_at_the_ends_of_a_region_and_alone_stay_mxnets(rng):
    x = sym.Reshape(sym.var("data", dtype="float32"), shape=(0, -1))
    alone = sym.Reshape(real(x), shape=(-1,))
    _, regions, kept = regions_of(alone)
    assert not regions and kept == ["Reshape", "Reshape"]
    _, regions, kept = regions_of(sym.Group([sym.Flatten(sym.relu(real(x))), x]))
    assert [len(inside) for inside in regions] == [2] and sorted(kept) == ["Flatten", "Reshape"]
    _, report = swap_symbol(sym.relu(sym.Reshape(real(x), shape=(-1,))), regions=False)
    assert [row.reason for row in report.kept] == ["no grafted operator computes it"] * 2


def test_whole_numbers_stay_mxnets():
    places = sym.elemwise_add(sym.Reshape(sym.var("index"), shape=(-1,)), sym.arange(6, dtype="int32"))
    inside = sym.relu(sym.Reshape(real(sym.var("data")), shape=(-1,)))
    _, report = swap_symbol(sym.Group([sym.softmax(inside), sym.take(sym.var("place"), places)]), regions=True)
    reasons = {row.operator: row.reason for row in report.kept}
    assert len(report.regions) == 1 and set(reasons) == {"Reshape", "elemwise_add", "_arange", "take"}
    assert "dtype of 'index' is not known" in reasons["Reshape"] and "int32" in reasons["_arange"]
