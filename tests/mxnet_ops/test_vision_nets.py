"""Detection and segmentation nets: swapped ones bind, train in Module and Gluon, and agree with MXNet's."""

from __future__ import annotations

from collections import namedtuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from clgraft.mxnet_ops import swap_block, swap_symbol
from tests.mxnet_ops import vision_nets
from tests.mxnet_ops.operator_checks import MODES, random

BATCH, SIZE = 2, 16
STEPS = 3
TOLERANCE = 2e-4  # of the largest value, after some steps of training
OPTIONS = {
    "single": {"regions": False},
    "regions": {"regions": True},
}
# what stays MXNet's
DETECTION = {"_contrib_MultiBoxPrior", "_contrib_MultiBoxTarget", "_contrib_MultiBoxDetection"}
SHAPES = {"Flatten", "Reshape", "BlockGrad", "MakeLoss", "UpSampling"}
Batch = namedtuple("Batch", ["data", "label"])

BOXES = np.array(
    [[[0, 0.1, 0.1, 0.5, 0.6], [2, 0.4, 0.3, 0.9, 0.8]], [[1, 0.2, 0.5, 0.7, 0.95], [-1, -1, -1, -1, -1]]], "float32"
)


def labels(name: str, rng: np.random.Generator) -> np.ndarray:
    if name == "ssd":
        return BOXES
    found = rng.integers(0, vision_nets.CLASSES, (BATCH, SIZE, SIZE)).astype("float32")
    found[0, :2] = 255 if name == "fcn" else 0
    return found


def trained(symbol, name: str, data: np.ndarray, label: np.ndarray) -> dict:
    """Train a symbol in a Module, and return the outputs of each step, the parameters and the states."""
    label_name = "label" if name == "ssd" else "softmax_label"
    module = mx.mod.Module(symbol, data_names=["data"], label_names=[label_name])
    module.bind([("data", data.shape)], [(label_name, label.shape)])
    mx.random.seed(5)
    np.random.seed(5)
    module.init_params(mx.init.Mixed(["up1_weight", ".*"], [mx.init.Bilinear(), mx.init.Xavier(magnitude=2)]))
    module.init_optimizer(optimizer_params={"learning_rate": 0.05, "momentum": 0.9})
    found = {}
    for step in range(STEPS):
        module.forward_backward(Batch([mx.nd.array(data)], [mx.nd.array(label)]))
        found.update({f"step {step}, output {i}": o.asnumpy() for i, o in enumerate(module.get_outputs())})
        module.update()
    mx.nd.waitall()  # moving statistics are read while backward writes them, MXNet's own too
    parameters, states = module.get_params()
    return {**found, **{k: v.asnumpy() for k, v in {**parameters, **states}.items()}}


def assert_near(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, right in expected.items():
        assert np.isfinite(right).all(), name
        scale = max(float(np.abs(right).max()), 1e-3)
        assert np.abs(got[name] - right).max() <= TOLERANCE * scale, name


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["ssd", "fcn", "unet"])
def test_a_module_trains_as_mxnets(name, options, rng):
    native = getattr(vision_nets, name)()
    swapped, report = swap_symbol(native, **OPTIONS[options])
    # a region would change the order of the detector's arguments
    assert {row.operator for row in report.kept} <= DETECTION | SHAPES | {"ocl_region"}, report.kept
    assert swapped.list_arguments() == native.list_arguments() and swapped.list_outputs() == native.list_outputs()
    data, label = random(rng, BATCH, 3, SIZE, SIZE), labels(name, rng)
    expected = trained(native, name, data, label)
    assert np.ptp(expected["step 0, output 0"]) > 0
    assert_near(trained(swapped, name, data, label), expected)


def losses(name: str, net, x, rng: np.random.Generator):
    """Return the loss of a Gluon net and its outputs; for detection with the targets of all anchors."""
    if name == "Segmenter":
        y = net(x)
        target = mx.nd.array(rng.integers(0, vision_nets.CLASSES, (BATCH, *y.shape[2:])))
        return gluon.loss.SoftmaxCrossEntropyLoss(axis=1)(y, target), [y]
    anchors, classes, boxes = net(x)
    with autograd.pause():
        targets = mx.nd.contrib.MultiBoxTarget(anchors, mx.nd.array(BOXES), mx.nd.transpose(classes, axes=(0, 2, 1)))
    distance = gluon.loss.HuberLoss()(boxes * targets[1], targets[0] * targets[1])
    return gluon.loss.SoftmaxCrossEntropyLoss()(classes, targets[2]) + distance, [anchors, classes, boxes]


@pytest.mark.parametrize("regions", [False, True], ids=["operators", "regions"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Detector", "Segmenter"])
def test_a_gluon_net_trains_as_mxnets(name, mode, regions, rng):
    x = mx.nd.array(random(rng, BATCH, 3, 13, SIZE))
    dtype = "float64" if name == "Segmenter" else "float32"  # kinks of rectifiers: rounding changes the training
    x, results = x.astype(dtype), []
    for swap in (False, True):
        mx.random.seed(7)
        np.random.seed(7)
        net = getattr(vision_nets, name)()
        net.initialize(mx.init.Xavier(magnitude=2))
        net.cast(dtype)
        if swap:
            report = swap_block(net, regions=regions)
            assert len(report.replaced) >= 6, report
        if mode != "plain":
            net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
        numbers, found = np.random.default_rng(3), {}
        for step in range(STEPS):
            with autograd.record():
                loss, outputs = losses(name, net, x, numbers)
            loss.backward()
            trainer.step(BATCH)
            found.update({f"step {step}, {i}": o.asnumpy() for i, o in enumerate([loss, *outputs])})
        found.update({k: p.data().asnumpy() for k, p in net.collect_params().items()})
        results.append(found)
    assert_near(results[1], results[0])
