"""Channels last, which MXNet's convolutions have on no CPU, against MXNet's channels first of transposed data."""

from __future__ import annotations

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from clgraft import core
from clgraft import mxnet_ops as ops
from clgraft.core.session.context import Context
from tests.mxnet_ops.operator_checks import assert_close, compare, random

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


def to_last(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim + 2), 1)


def to_first(ndim: int) -> tuple[int, ...]:
    return (0, ndim + 1, *range(1, ndim + 1))


def turned(operator: str, ndim: int, keys: dict, bias: bool = True) -> mx.sym.Symbol:
    """Return MXNet's operator in channels first between transpositions of data, weight and output."""
    first = [mx.sym.transpose(mx.sym.var(name), axes=to_first(ndim)) for name in ("data", "c_weight")]
    if operator == "Pooling":
        first = first[:1]
    elif bias:
        first.append(mx.sym.var("c_bias"))
    y = getattr(mx.sym, operator)(*first, layout=None if operator == "Pooling" else LAYOUTS[ndim][0], **keys)
    return mx.sym.transpose(y, axes=to_last(ndim))


# operator, our name, shape of the data, attributes
CASES = {
    "3x3": ("Convolution", "ocl_conv", (2, 7, 6, 5), {"kernel": (3, 3), "pad": (1, 1), "num_filter": 9}),
    "1x1": ("Convolution", "ocl_conv", (2, 5, 4, 18), {"kernel": (1, 1), "num_filter": 7}),
    "stride-groups": (
        *("Convolution", "ocl_conv", (2, 9, 8, 6)),
        {"kernel": (3, 2), "stride": (2, 1), "dilate": (1, 2), "pad": (1, 0), "num_filter": 4, "num_group": 2},
    ),
    "depthwise": (
        *("Convolution", "ocl_depthwise_conv", (2, 7, 7, 19)),
        {"kernel": (3, 3), "pad": (1, 1), "num_filter": 19, "num_group": 19},
    ),
    "1-d": ("Convolution", "ocl_conv", (2, 11, 3), {"kernel": (3,), "num_filter": 5}),
    "3-d": ("Convolution", "ocl_conv", (1, 4, 5, 6, 3), {"kernel": (2, 3, 3), "pad": (0, 1, 1), "num_filter": 4}),
    "deconvolution": (
        *("Deconvolution", "ocl_deconv", (2, 5, 4, 6)),
        {"kernel": (3, 4), "stride": (2, 2), "pad": (1, 1), "adj": (1, 0), "num_filter": 4},
    ),
}


def weight_shape(operator: str, shape: tuple[int, ...], keys: dict) -> tuple[int, ...]:
    channels, filters, groups = shape[-1], keys["num_filter"], keys.get("num_group", 1)
    outer, inner = (filters, channels) if operator == "Convolution" else (channels, filters)
    return (outer, *keys["kernel"], inner // groups)


@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_mxnets_of_transposed_data(name, rng):
    operator, op_type, shape, keys = CASES[name]
    ndim = len(shape) - 2
    weight = weight_shape(operator, shape, keys)
    ours = mx.sym.Custom(mx.sym.var("data"), op_type=op_type, name="c", layout=LAYOUTS[ndim][1], no_bias=False, **keys)
    shapes, _, _ = ours.infer_shape(data=shape)
    assert shapes == [shape, weight, (keys["num_filter"],)]
    arrays = {
        "data": random(rng, *shape),
        "c_weight": random(rng, *weight),
        "c_bias": random(rng, keys["num_filter"]),
    }
    compare(ours, turned(operator, ndim, {**keys, "no_bias": False}), arrays, rng)


@pytest.mark.parametrize("pool_type", ["max", "avg"])
@pytest.mark.parametrize("shape", [(2, 9, 5), (2, 9, 8, 19), (1, 5, 6, 7, 3)], ids=str)
def test_pooling_is_mxnets_of_transposed_data(shape, pool_type, rng):
    ndim = len(shape) - 2
    keys = {"kernel": (3,) * ndim, "stride": (2,) * ndim, "pad": (1,) * ndim, "pool_type": pool_type}
    keys["count_include_pad"] = False
    ours = mx.sym.Custom(mx.sym.var("data"), op_type="ocl_pooling", layout=LAYOUTS[ndim][1], **keys)
    compare(ours, turned("Pooling", ndim, keys), {"data": random(rng, *shape)}, rng, requests=["write", "add"])


@pytest.mark.parametrize("name", ["3x3", "depthwise", "deconvolution", "3-d"])
def test_what_mxnet_refuses_runs_when_it_is_swapped(name, rng):
    operator, op_type, shape, keys = CASES[name]
    ndim = len(shape) - 2
    native = getattr(mx.sym, operator)(mx.sym.var("data"), name="c", layout=LAYOUTS[ndim][1], no_bias=True, **keys)
    arrays = {"data": random(rng, *shape), "c_weight": random(rng, *weight_shape(operator, shape, keys))}
    given = {name: mx.nd.array(array) for name, array in arrays.items()}
    with pytest.raises(mx.MXNetError):
        native.bind(mx.cpu(), given).forward()[0].wait_to_read()
    swapped, report = ops.swap_symbol(native)
    assert [row.became for row in report.replaced] == [op_type]
    expected = turned(operator, ndim, {**keys, "no_bias": True}, bias=False).bind(mx.cpu(), given).forward()[0]
    assert_close(swapped.bind(mx.cpu(), given).forward()[0].asnumpy(), expected.asnumpy())


def net(last: bool, groups: int = 16) -> gluon.nn.HybridSequential:
    """Return a small vision net of either layout; its sizes follow from the first data."""
    layout, axis = ("NHWC", 3) if last else ("NCHW", 1)
    layers = gluon.nn.HybridSequential(prefix="net_")
    with layers.name_scope():
        layers.add(
            gluon.nn.Conv2D(16, 3, padding=1, use_bias=False, layout=layout),
            gluon.nn.BatchNorm(axis=axis),
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2D(16, 3, strides=2, padding=1, groups=groups, use_bias=False, layout=layout),
            gluon.nn.Conv2D(24, 1, use_bias=False, layout=layout),
            gluon.nn.BatchNorm(axis=axis),
            gluon.nn.MaxPool2D(2, layout=layout),
            gluon.nn.Conv2D(8, 3, layout=layout),
            gluon.nn.GlobalAvgPool2D(layout=layout),
            gluon.nn.Dense(5),
        )
    layers.initialize(mx.init.Xavier())
    return layers


# regions are formed in hybridized nets only
@pytest.mark.parametrize("hybrid, regions", [(False, False), (True, False), (True, True)])
def test_gluon_nets_in_channels_last(hybrid, regions, rng):
    images = random(rng, 2, 3, 17, 16)
    first, last = net(False), net(True)
    first(mx.nd.array(images))
    ops.swap_block(last, regions=regions)
    if hybrid:
        last.hybridize()
    with pytest.raises(gluon.parameter.DeferredInitializationError):
        last[0].weight.data()
    data = [mx.nd.array(images), mx.nd.array(images.transpose(0, 2, 3, 1))]
    last(data[1])
    known = first.collect_params()
    for name, parameter in last.collect_params().items():
        value = known[name].data().asnumpy()
        parameter.set_data(mx.nd.array(value.transpose(0, 2, 3, 1) if value.ndim == 4 else value))
    head = mx.nd.array(random(rng, 2, 5))
    outputs = []
    for layers, x in zip((first, last), data):
        x.attach_grad()
        with mx.autograd.record():
            y = layers(x)
        y.backward(head)
        outputs.append(y.asnumpy())
        assert np.isfinite(x.grad.asnumpy()).all()
    assert_close(outputs[1], outputs[0])
    assert_close(data[1].grad.asnumpy(), data[0].grad.asnumpy().transpose(0, 2, 3, 1), what="gradient of data")
    for name, parameter in last.collect_params().items():
        if parameter.grad_req != "null":
            expected = known[name].grad().asnumpy()
            expected = expected.transpose(0, 2, 3, 1) if expected.ndim == 4 else expected
            assert_close(parameter.grad().asnumpy(), expected, what=name)


@pytest.mark.parametrize("staged", [False, True])
def test_regions_keep_values_in_channels_last_for_their_backward(staged, context, monkeypatch, rng):
    """On a device with matrix units of 16 bits the images and their gradient alone are converted."""
    access = "staged" if staged else context.device.host_access
    device = dataclasses.replace(context.device, halves=("mma-float16", "mma-bfloat16"), host_access=access)
    images, head = (mx.nd.array(random(rng, *shape)) for shape in ((4, 3, 17, 16), (4, 5)))
    parameters = [array.data().asnumpy() for array in initialized(images).collect_params().values()]
    found = []
    for switches in ("", "-layouts"):
        monkeypatch.setenv("CLGRAFT_GRAPH", switches)
        made = Context(context.cl_context, context.cl_device, context.queue, device=device)
        monkeypatch.setattr(core, "context", lambda *arguments, made=made: made)
        layers = initialized(images)
        for parameter, array in zip(layers.collect_params().values(), parameters):
            parameter.set_data(mx.nd.array(array))
        ops.swap_block(layers, precision="float16")
        layers.hybridize()
        images.attach_grad()
        for _ in range(2):  # the second one with the arrays of the first
            with mx.autograd.record():
                y = layers(images)
            y.backward(head)
        learned = [one.grad() for one in layers.collect_params().values() if one.grad_req != "null"]
        arrays = [array.asnumpy() for array in (y, images.grad, *learned)]
        graphs = [graph for graph in (one() for one in made._graphs) if graph is not None]
        conversions = [report.conversions for graph in graphs for report in graph.reports()]
        found.append((arrays, conversions))
    assert [conversions for _, conversions in found] == [[1, 1], [0, 0]]
    for one, two in zip(*(arrays for arrays, _ in found)):
        assert np.abs(one - two).max() <= 0.02 * np.abs(two).max()


def initialized(images: mx.nd.NDArray) -> gluon.nn.HybridSequential:
    """Return the net in channels first with its sizes, and without a depthwise layer."""
    layers = net(False, groups=1)
    layers(images)
    return layers
