"""Training goes on across a swap, in both directions; shapes that change; weights used twice; loaders and threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import clgraft.mxnet_ops as ops
from tests.mxnet_ops.operator_checks import assert_close, evaluate, random

CLASSES, BATCH, STEPS = 4, 8, 3
SHAPE = (3, 12, 10)


def block() -> gluon.nn.HybridSequential:
    net, nn = gluon.nn.HybridSequential(prefix="net_"), gluon.nn
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("tanh"))
        net.add(nn.Conv2D(8, 3, padding=1, groups=8), nn.AvgPool2D(), nn.Conv2D(6, 3, strides=2), nn.ELU())
        net.add(nn.Dense(CLASSES))
    return net


def batches(rng):
    labels = rng.integers(0, CLASSES, (2 * STEPS, BATCH))
    images = rng.standard_normal((2 * STEPS, BATCH, *SHAPE)) + labels[..., None, None, None]
    return list(zip(images, labels))


def train_block(folder, data, ours: bool, dtype: str, resume: bool) -> list[float]:
    """Train on some batches, from and to files of parameters and of the optimizer's states."""
    net = block()
    net.cast(dtype)
    if ours:
        ops.swap_block(net)
    net.load_parameters(str(folder / "net.params"), cast_dtype=True)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3})
    if resume:
        trainer.load_states(str(folder / "net.states"))
    loss, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for x, labels in data:
        with mx.autograd.record():
            value = loss(net(mx.nd.array(x, dtype=dtype)), mx.nd.array(labels, dtype=dtype))
        value.backward()
        trainer.step(len(x))
        losses.append(float(value.mean().asscalar()))
    mx.nd.waitall()
    net.save_parameters(str(folder / "net.params"))
    trainer.save_states(str(folder / "net.states"))
    return losses


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-11), ("float32", 1e-4)])
def test_a_trainer_goes_on_across_the_swap(dtype, tolerance, tmp_path, rng):
    data = batches(rng)
    net = block()
    mx.random.seed(5)
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(data[0][0]))
    curves, parameters = {}, {}
    for first, second in ((False, False), (False, True), (True, False), (True, True)):
        folder = tmp_path / f"{first}{second}"
        folder.mkdir()
        net.save_parameters(str(folder / "net.params"))
        curves[first, second] = [
            *train_block(folder, data[:STEPS], first, dtype, resume=False),
            *train_block(folder, data[STEPS:], second, dtype, resume=True),
        ]
        parameters[first, second] = mx.nd.load(str(folder / "net.params"))
    expected = curves[False, False]
    assert abs(expected[-1] - expected[0]) > 0.01
    for way, losses in curves.items():
        np.testing.assert_allclose(losses, expected, rtol=tolerance, err_msg=str(way))
        for name, value in parameters[False, False].items():
            right = value.asnumpy()
            error = np.abs(parameters[way][name].asnumpy() - right).max()
            assert error <= tolerance * max(np.abs(right).max(), 0.1), (way, name, error)


def symbol() -> mx.sym.Symbol:
    x = block()(mx.sym.var("data"))
    return mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"), name="softmax")


def train_module(prefix, data, net, epoch: int) -> None:
    """Train on some batches, from and to checkpoints that hold the optimizer's states."""
    if epoch:
        module = mx.mod.Module.load(prefix, epoch, load_optimizer_states=True)
        module._symbol = net
    else:
        module = mx.mod.Module(net)
    module.bind([("data", (BATCH, *SHAPE))], [("softmax_label", (BATCH,))])
    if not epoch:
        mx.random.seed(5)
        module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    for x, labels in data:
        module.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(labels)]))
        module.update()
    mx.nd.waitall()
    module.save_checkpoint(prefix, epoch + 1, save_optimizer_states=True)


def test_a_module_goes_on_across_the_swap(tmp_path, rng):
    data, native = batches(rng), symbol()
    swapped, _ = ops.swap_symbol(native)
    found = {}
    for ways in ((native, native), (native, swapped), (swapped, native)):
        prefix = str(tmp_path / f"m{len(found)}")
        train_module(prefix, data[:STEPS], ways[0], 0)
        train_module(prefix, data[STEPS:], ways[1], 1)
        found[len(found)] = mx.nd.load(prefix + "-0002.params")
    for name, value in found[0].items():
        for way in (1, 2):
            right = value.asnumpy()
            error = np.abs(found[way][name].asnumpy() - right).max()
            assert error <= 1e-4 * max(np.abs(right).max(), 0.1), (way, name, error)


def test_a_module_is_bound_to_other_shapes(rng):
    native = symbol()
    swapped, _ = ops.swap_symbol(native)
    outputs = []
    for net in (native, swapped):
        module = mx.mod.Module(net)
        module.bind([("data", (BATCH, *SHAPE))], [("softmax_label", (BATCH,))])
        mx.random.seed(5)
        module.init_params(mx.init.Xavier())
        found, numbers = [], np.random.default_rng(1)
        for batch in (BATCH, 1, 5, BATCH):
            module.reshape([("data", (batch, *SHAPE))], [("softmax_label", (batch,))])
            x, labels = random(numbers, batch, *SHAPE), numbers.integers(0, CLASSES, batch)
            module.forward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(labels)]), is_train=True)
            module.backward()
            mx.nd.waitall()
            found.append(module.get_outputs()[0].asnumpy())
        outputs.append(found)
    for got, expected in zip(outputs[1], outputs[0]):
        assert_close(got, expected)


def test_a_net_meets_other_shapes_and_is_hybridized_and_not(rng):
    native, net = block(), block()
    native.initialize(mx.init.Xavier())
    native(mx.nd.zeros((1, *SHAPE)))
    ops.swap_block(net)
    net.initialize()
    net(mx.nd.zeros((1, *SHAPE)))
    for name, parameter in net.collect_params().items():
        parameter.set_data(native.collect_params()[name].data())
    for active in (True, False, True):
        net.hybridize(active)
        for batch in (1, 3, 2, 1):
            x = mx.nd.array(random(rng, batch, *SHAPE))
            assert_close(net(x).asnumpy(), native(x).asnumpy())


@pytest.mark.parametrize("active", [True, False], ids=["hybrid", "plain"])
def test_batch_of_none(active):
    net = block()
    net.initialize()
    net(mx.nd.zeros((1, *SHAPE)))
    ops.swap_block(net)
    net.hybridize(active)
    with mx.util.np_shape(True):
        with mx.autograd.record():
            y = net(mx.nd.zeros((0, *SHAPE)))
        y.backward()
        assert y.asnumpy().shape == (0, CLASSES)
        assert not net[0].weight.grad().asnumpy().any() and not net[-1].bias.grad().asnumpy().any()


@pytest.mark.parametrize("active", [True, False], ids=["hybrid", "plain"])
def test_a_slice_of_a_swapped_net_is_swapped(active, rng):
    x = mx.nd.array(random(rng, 2, *SHAPE))
    net = block()
    net.initialize(mx.init.Xavier())
    expected = net[:4](x).asnumpy()
    ops.swap_block(net, select=["*conv*"])
    part = net[:4]
    part.hybridize(active)
    assert_close(part(x).asnumpy(), expected)
    if active:
        text = part._cached_graph[1].tojson()
        assert "ocl_conv" in text and "ocl_batchnorm" not in text


@pytest.mark.parametrize(
    "requests", ["write", "add", {"data": "add", "w": "write"}, {"data": "null", "w": "add"}], ids=str
)
def test_a_weight_used_twice(requests, rng):
    weight, x = mx.sym.var("w"), mx.sym.var("data")
    for i in range(2):
        x = mx.sym.Convolution(x, weight, kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True, name=f"c{i}")
        x = mx.sym.tanh(x, name=f"t{i}")
    swapped, _ = ops.swap_symbol(x)
    arrays = {"data": random(rng, 2, 4, 6, 7, dtype="float64"), "w": random(rng, 4, 4, 3, 3, dtype="float64")}
    head = [random(rng, 2, 4, 6, 7, dtype="float64")]
    got, expected = (evaluate(s, arrays, head, requests=requests, start=3.0).gradients for s in (swapped, x))
    for name in arrays:
        if requests == "write" or requests == "add" or requests[name] != "null":
            assert_close(got[name], expected[name], "float64", name)


@pytest.mark.parametrize("request_", ["write", "add"])
def test_parameters_shared_by_blocks_and_gradients_that_add_up(request_, rng):
    x = mx.nd.array(random(rng, 2, 4, 6, 6))
    gradients = []
    for ours in (False, True):
        mx.random.seed(3)
        net, nn = gluon.nn.HybridSequential(prefix="shared_"), gluon.nn
        first = nn.Conv2D(4, 3, padding=1, in_channels=4, prefix="a_")
        net.add(
            first, nn.Activation("tanh"), nn.Conv2D(4, 3, padding=1, in_channels=4, params=first.params, prefix="a_")
        )
        net.initialize(mx.init.Xavier())
        net.collect_params().setattr("grad_req", request_)
        if ours:
            ops.swap_block(net)
        net.hybridize()
        for _ in range(2):
            with mx.autograd.record():
                y = net(x)
            y.backward()
        mx.nd.waitall()
        gradients.append({name: p.grad().asnumpy() for name, p in net.collect_params().items()})
    assert len(gradients[0]) == 2
    for name, value in gradients[0].items():
        assert_close(gradients[1][name], value, what=name)


FORKING = """
import clgraft.mxnet_ops as ops
import mxnet as mx
import numpy as np
from mxnet import gluon

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(4, 3), gluon.nn.Dense(2))
net.initialize()
ops.swap_block(net)
net.hybridize()
images = np.random.default_rng(1).standard_normal((12, 3, 8, 8)).astype("float32")
whole = net(mx.nd.array(images)).asnumpy()  # OpenCL is in use when the workers are forked
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(images), batch_size=3, num_workers=2)
for _ in range(2):
    # workers hand arrays of cpu_shared over, which no cached graph of MXNet takes together with parameters of cpu
    found = np.concatenate([net(x.as_in_context(mx.cpu())).asnumpy() for x in loader])
    assert np.abs(found - whole).max() < 1e-5 * np.abs(whole).max()
print("epochs done")
"""


def test_data_loaders_that_fork_after_opencl_was_used():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "epochs done" in done.stdout, done.stderr


def test_threads_that_each_train_a_net_of_their_own(rng):
    data = mx.nd.array(random(rng, 4, *SHAPE))
    nets = []
    for number in range(3):
        mx.random.seed(number)
        net = block()
        net.initialize(mx.init.Xavier(), force_reinit=True)
        net(data)
        ops.swap_block(net)
        net.hybridize()
        nets.append(net)

    def gradient(net) -> np.ndarray:
        x = data.copy()  # recording writes to the inputs' own entries: MXNet's threads must not share them
        with mx.autograd.record():
            y = net(x)
        y.backward()
        return net[0].weight.grad().asnumpy()

    alone = [gradient(net) for net in nets]
    failures: list = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                assert (gradient(nets[number]) == alone[number]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(nets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "expected threads to end"
    assert not failures, failures
