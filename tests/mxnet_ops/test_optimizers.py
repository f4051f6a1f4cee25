"""clgraft's optimizers against MXNet's: the same bits, states and files, in order with the rest of MXNet's work."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
import subprocess
import sys
import threading

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft.mxnet_ops.engine.calls import lib
from clgraft.mxnet_ops.optimizers import update as update_module
from clgraft.mxnet_ops.optimizers.numbers import as_mxnet_reads
from tests.core.nn.optimizer_steps import GRADIENTS, RATES, WEIGHT, steps

SHAPES = ((1,), (7,), (16, 3, 3, 3), (1009,), (513,), (257, 601))
RULES = (("sgd", {"momentum": 0.9}), ("sgd", {}), ("nag", {"momentum": 0.87}), ("nag", {}), ("adam", {}))
SETTINGS = (
    {},
    {"wd": 1e-4, "rescale_grad": 1 / 24},
    {"wd": 0.013, "clip_gradient": 0.7, "rescale_grad": 0.81, "begin_num_update": 9},
    {"learning_rate": 3.3e-5, "rescale_grad": 1 / 12345, "clip_gradient": 1e-5},
    {"learning_rate": None, "lr_scheduler": (2, 0.31, 0.123456789)},
)
IDS = ("plain", "decay", "clip", "small", "scheduler")


class Counting:
    """The C library, which counts what it is given."""

    def __init__(self):
        self.pushes = self.parameters = 0

    def __getattr__(self, name):
        return getattr(lib, name)

    def clg_mx_push_update(self, rule, block, count):
        self.pushes += 1
        self.parameters += count
        return lib.clg_mx_push_update(rule, block, count)


@pytest.fixture
def counts(monkeypatch):
    """How many operations C has pushed, and for how many parameters."""
    found = Counting()
    monkeypatch.setattr(update_module, "lib", found)
    return found


def create(name, **settings):
    """Return an optimizer; a scheduler is given by its numbers, as it has a state."""
    if "lr_scheduler" in settings:
        step, factor, base = settings["lr_scheduler"]
        settings["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=step, factor=factor, base_lr=base)
    return mx.optimizer.create(name, **settings)


def flat(state):
    """Return the arrays of a state, which may be nested."""
    if state is None:
        return []
    return [state] if isinstance(state, mx.nd.NDArray) else [array for part in state for array in flat(part)]


def arrays(seed, dtype, shapes=SHAPES, scale=1.0):
    rng = np.random.default_rng(seed)
    return [mx.nd.array(scale * rng.standard_normal(shape), dtype=dtype) for shape in shapes]


def train(optimizer, dtype, steps=3, shapes=SHAPES):
    """Return weights and states after some updates with random gradients."""
    updater = mx.optimizer.get_updater(optimizer)
    weights = arrays(1, dtype, shapes)
    for step in range(steps):
        updater(list(range(len(shapes))), arrays(2 + step, dtype, shapes, 2.0), weights)
    return weights + [array for key in range(len(shapes)) for array in flat(updater.states[key])]


def expect_same(found, expected):
    """Compare the bits of arrays."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.asnumpy().tobytes() == b.asnumpy().tobytes()


@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16"))
@pytest.mark.parametrize("name, own", RULES)
def test_bits_are_mxnets(name, own, dtype, settings, counts):
    settings = {"learning_rate": 0.0123, **settings, **own, "multi_precision": dtype == "float16"}
    found = train(create(f"ocl_{name}", **settings), dtype)
    assert counts.pushes == 3 and counts.parameters == 3 * len(SHAPES)
    expect_same(found, train(create(name, **settings), dtype))


@pytest.mark.parametrize("name, own", [("sgd", {"momentum": 0.9}), ("adam", {})])
def test_parameters_that_are_left_out_now_and_then(name, own):
    def run(kind):
        settings = {"learning_rate": None, "lr_scheduler": (1, 0.5, 0.1), **own}
        updater, weights = mx.optimizer.get_updater(create(kind, **settings)), arrays(1, "float32", ((3,),) * 9)
        for indices in ([8], [8, 7, 6, 5], [0, 1, 8, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7, 8]):
            updater(indices, arrays(2, "float32", ((3,),) * len(indices)), [weights[i] for i in indices])
        return weights

    expect_same(run(f"ocl_{name}"), run(name))


def reference(name, own, weight, gradients, lr, wd, clip):
    """Return the weights after updates in float64; MXNet's kernels get all numbers in single precision."""
    momentum, beta1, beta2, eps = (float(np.float32(x)) for x in (own.get("momentum", 0), 0.9, 0.999, 1e-8))
    w, m, v = weight, np.zeros_like(weight), np.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        if name == "adam":
            g = np.clip(gradient + wd * w, -clip, clip)
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
            w = w - float(np.float32(lr * np.sqrt(1 - 0.999**step) / (1 - 0.9**step))) * m / (np.sqrt(v) + eps)
            continue
        g = lr * (np.clip(gradient, -clip, clip) + wd * w)
        if name == "sgd":
            m = momentum * m - g
            w = w + m
        elif not momentum:
            w = w - g
        else:
            w = w - momentum * m + (1 + momentum) * (momentum * m - g)
            m = momentum * m - lr * (np.clip(gradient, -clip, clip) + wd * w)  # MXNet: of the new weight
    return w


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-14), ("float32", 6e-7)])
@pytest.mark.parametrize("name, own", RULES)
def test_against_float64(name, own, dtype, tolerance):
    weight, *gradients = (arrays(seed, "float32", SHAPES[-1:], scale=1.5)[0] for seed in range(4))
    expected, *given = (array.asnumpy().astype(np.float64) for array in (weight, *gradients))
    weight = weight.astype(dtype)
    optimizer = create(f"ocl_{name}", learning_rate=0.125, wd=0.0625, clip_gradient=2.0, **own)
    state = optimizer.create_state(0, weight)
    for gradient in gradients:
        optimizer.update(0, weight, gradient.astype(dtype), state)
    expected = reference(name, own, expected, given, 0.125, 0.0625, 2.0)
    np.testing.assert_allclose(weight.asnumpy(), expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_numbers_are_read_as_mxnet_reads_them():
    numbers = random.Random(1)
    zero, one = mx.nd.zeros(1), mx.nd.ones(1)
    found = [numbers.uniform(1, 10) * 10 ** numbers.uniform(-12, 3) for _ in range(400)] + [
        0.1,
        1,
        0,
        1e-8,
        1 / 3,
        65536,
    ]
    for number in found:
        read = -mx.nd.sgd_update(zero, one, lr=number).asscalar()
        assert np.float32(as_mxnet_reads(number)) == read, number
    assert any(np.float32(as_mxnet_reads(number)) != np.float32(number) for number in found)
    assert as_mxnet_reads(float("inf")) == float("inf") and as_mxnet_reads(-0.25) == -0.25


def test_half_precision_is_converted_exactly():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(3)
    exact = halves.astype(np.float32)
    ties = (exact.view(np.uint32) + rng.choice([0xFFF, 0x1000, 0x1001], exact.shape).astype(np.uint32)).view(np.float32)
    bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    tiny = np.ldexp(rng.random(1 << 16), rng.integers(-30, -10, 1 << 16)).astype(np.float32)
    for values in (exact, ties, bits, tiny):
        values = values[np.isfinite(values)]
        optimizer = create("ocl_sgd", learning_rate=0.0, multi_precision=True)
        weight, master = mx.nd.ones(values.shape, dtype="float16"), mx.nd.array(values)
        optimizer.update_multi_precision(0, weight, mx.nd.zeros(values.shape, dtype="float16"), (None, master))
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(weight.asnumpy(), values.astype(np.float16))
    optimizer = create("ocl_sgd", learning_rate=1.0, multi_precision=True)
    weight, master = mx.nd.ones(halves.shape, dtype="float16"), mx.nd.zeros(halves.shape)
    optimizer.update_multi_precision(0, weight, mx.nd.array(halves, dtype="float16"), (None, master))
    np.testing.assert_array_equal(master.asnumpy(), -exact)


# ---- what is MXNet's

UNSERVED = {
    "half precision": {"dtype": "float16"},
    "negative momentum": {"momentum": -0.5},
}


@pytest.mark.parametrize("case", UNSERVED)
def test_what_is_not_served_is_mxnets(case, counts):
    settings = {"momentum": 0.9, **UNSERVED[case]}
    dtype = settings.pop("dtype", "float32")
    for name in ("nag",) if case == "negative momentum" else ("sgd", "nag"):
        found = train(create(f"ocl_{name}", learning_rate=0.01, **settings), dtype)
        assert counts.pushes == 0
        expect_same(found, train(create(name, learning_rate=0.01, **settings), dtype))


@pytest.mark.parametrize("name, own", [("sgd", {"momentum": 0.9}), ("adam", {})])
@pytest.mark.parametrize("lazy", (True, False))
def test_sparse_gradients(name, own, lazy, counts):
    def run(kind):
        optimizer = create(kind, learning_rate=0.1, wd=0.01, lazy_update=lazy, **own)
        updater = mx.optimizer.get_updater(optimizer)
        dense, table = arrays(1, "float32", ((5, 3), (9, 4)))
        table = table.tostype("row_sparse")
        for step in range(2):
            rows = mx.nd.sparse.row_sparse_array((np.full((2, 4), step + 1.5, np.float32), [step, 7]), shape=(9, 4))
            if kind.startswith("ocl") or name == "sgd":
                updater([0, 1], [dense * 0.3, rows], [dense, table])
            else:
                updater(0, dense * 0.3, dense)
                updater(1, rows, table)
        return [
            dense,
            table.tostype("default"),
            *(a.tostype("default") for k in (0, 1) for a in flat(updater.states[k])),
        ]

    found = run(f"ocl_{name}")
    assert (counts.pushes, counts.parameters) == (2, 2)
    expect_same(found, run(name))


def test_a_wrong_shape_is_mxnets_error():
    optimizer = create("ocl_sgd", learning_rate=0.1)
    with pytest.raises(mx.base.MXNetError):
        optimizer.update(0, mx.nd.ones((3,)), mx.nd.ones((4,)), None)
        mx.nd.waitall()


def test_weights_in_one_array(counts):
    def run(name):
        whole, gradients = arrays(1, "float32", ((64,), (64,)))
        states = arrays(3, "float32", ((16,),) * 4)
        parts = [(whole[at : at + 16], gradients[at : at + 16]) for at in (0, 16, 8, 48)]  # two of them overlap
        create(name, learning_rate=0.1, momentum=0.5).update(
            list(range(4)), [w for w, _ in parts], [g for _, g in parts], states
        ) if name == "ocl_sgd" else [
            create(name, learning_rate=0.1, momentum=0.5).update(i, w, g, s)
            for i, ((w, g), s) in enumerate(zip(parts, states))
        ]
        return [whole, *states]

    expect_same(run("ocl_sgd"), run("sgd"))
    assert counts.parameters == 4


def test_empty_arrays():
    with mx.util.np_shape(True):
        weights = [mx.nd.zeros((0, 3)), mx.nd.ones((2,)), mx.nd.zeros((0,))]
        updater = mx.optimizer.get_updater(create("ocl_sgd", learning_rate=0.5, momentum=0.9))
        updater([0, 1, 2], [weight + 1 for weight in weights], weights)
        np.testing.assert_array_equal(weights[1].asnumpy(), [0, 0])


# ---- Gluon, Module, stores of keys


def make_net(swapped=False, contexts=None):
    mx.random.seed(5)
    np.random.seed(5)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(16, 3, in_channels=16))
        if contexts is None:  # with two, MXNet's moving statistics differ from run to run
            net.add(mx.gluon.nn.BatchNorm(in_channels=16))
        net.add(mx.gluon.nn.Conv2D(16, 3, in_channels=16, use_bias=False), mx.gluon.nn.Flatten())
        net.add(mx.gluon.nn.Dense(5, in_units=16 * 16), mx.gluon.nn.Dense(3, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    net.hybridize(static_alloc=True, static_shape=True)
    if swapped:
        net(mx.nd.zeros((1, 16, 8, 8))).wait_to_read()
        ops.swap_block(net)
        net.hybridize(static_alloc=True, static_shape=True)
    return net


def fit(net, trainer, steps=3, contexts=None, infer=False):
    """Train without any waiting; return the parameters."""
    images = np.random.default_rng(6).standard_normal((4, 16, 8, 8)).astype(np.float32)
    for _ in range(steps):
        parts = mx.gluon.utils.split_and_load(mx.nd.array(images), contexts or [mx.cpu()])
        with mx.autograd.record():
            losses = [(net(part) ** 2).mean() for part in parts]
        mx.autograd.backward(losses)
        trainer.step(2)
        if infer:  # MXNet's convolutions then keep their weights in a layout of oneDNN
            for part in parts:
                net(part)
    return [array for parameter in net.collect_params().values() for array in parameter.list_data()]


def prepare(net):
    """Set what single parameters may have."""
    parameters = net.collect_params()
    for pattern, attribute, value in (
        (".*conv0_weight", "lr_mult", 0),
        (".*dense0.*", "wd_mult", 0.5),
        (".*conv0_bias", "grad_req", "null"),
        (".*dense1_bias", "lr_mult", 3),
    ):
        net.collect_params(pattern).setattr(attribute, value)
    return parameters


@pytest.mark.parametrize("infer", (False, True), ids=("train", "infer between"))
@pytest.mark.parametrize("swapped", (False, True), ids=("mxnet", "swapped"))
def test_trainer(swapped, infer, counts):
    def run(name):
        net = make_net(swapped)
        settings = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01}
        return fit(net, mx.gluon.Trainer(prepare(net), name, settings), infer=infer)

    found = run("ocl_sgd")
    assert counts.pushes == 3
    expect_same(found, run("sgd"))


@pytest.mark.parametrize("on_store", (False, True))
@pytest.mark.parametrize("name", ("sgd", "adam"))
def test_two_contexts(name, on_store, counts):
    contexts = [mx.cpu(0), mx.cpu(1)]

    def run(kind):
        net = make_net(contexts=contexts)
        settings = {"learning_rate": 0.01, "wd": 0.01}
        trainer = mx.gluon.Trainer(prepare(net), kind, settings, kvstore="local", update_on_kvstore=on_store)
        return fit(net, trainer, contexts=contexts)

    found = run(f"ocl_{name}")
    assert counts.parameters > 0
    expect_same(found, run(name))


def test_module(counts):
    def run(name):
        mx.random.seed(5)
        np.random.seed(5)
        data = mx.sym.var("data")
        symbol = mx.sym.FullyConnected(mx.sym.FullyConnected(data, num_hidden=7, name="a"), num_hidden=3, name="b")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(symbol, name="softmax"))
        batches = mx.io.NDArrayIter(np.random.rand(12, 6), np.arange(12) % 3, 4)
        module.fit(
            batches,
            optimizer=name,
            optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
            initializer=mx.init.Xavier(),
            num_epoch=2,
            kvstore=None,
        )
        return [array for _, array in sorted(module.get_params()[0].items())]

    found = run("ocl_sgd")
    assert (counts.pushes, counts.parameters) == (6, 24)
    expect_same(found, run("sgd"))


# ---- files and copies


@pytest.mark.parametrize("on_store", (False, True))
@pytest.mark.parametrize("saver, loader", [("ocl_", ""), ("", "ocl_"), ("ocl_", "ocl_")])
@pytest.mark.parametrize("name", ("sgd", "nag", "adam"))
def test_states_load_both_ways(name, saver, loader, on_store, tmp_path):
    own = {} if name == "adam" else {"momentum": 0.9}
    contexts = [mx.cpu(0), mx.cpu(1)] if on_store else None

    def run(first, second, by_file):
        net, made = make_net(contexts=contexts), []
        for kind in (first, second):
            settings = {"learning_rate": 0.02, **own}
            made.append(mx.gluon.Trainer(net.collect_params(), kind, settings, update_on_kvstore=on_store))
        fit(net, made[0], 2, contexts)
        if not by_file:
            return fit(net, made[0], 2, contexts), made[0]
        made[0].save_states(str(tmp_path / "states"))
        made[1].load_states(str(tmp_path / "states"))
        return fit(net, made[1], 2, contexts), made[1]

    found, trainer = run(saver + name, loader + name, True)
    expected, _ = run(name, name, False)
    kind = mx.optimizer.Optimizer.opt_registry[loader + name]
    assert type(trainer.optimizer) is kind
    expect_same(found, expected)


def test_what_is_pickled_is_mxnets(tmp_path):
    for name in ("sgd", "nag", "adam"):
        ours, mxnets = create(f"ocl_{name}", learning_rate=0.1), create(name, learning_rate=0.1)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            read = pickle.loads(pickle.dumps(ours, protocol))
            assert type(read) is type(mxnets) and read.__dict__ == mxnets.__dict__
        for copied in (copy.deepcopy(ours), copy.copy(ours)):
            assert type(copied) is type(ours) and copied.__dict__ == ours.__dict__ and copied is not ours
        assert ours.aggregate_num > 1000

    class Mine(ops.OclSGD):
        pass

    globals()["Mine"] = Mine
    Mine.__qualname__ = "Mine"
    assert type(pickle.loads(pickle.dumps(Mine(learning_rate=0.1)))) is Mine


# ---- order, threads, processes


def test_order_is_that_of_the_program():
    def run(name, wait):
        weight, gradient = arrays(1, "float32", ((300_001,), (300_001,)))
        updater, read = mx.optimizer.get_updater(create(name, learning_rate=0.1, momentum=0.9)), []
        for step in range(10):
            updater([0], [gradient], [weight])
            read.append((weight * gradient).sum())
            gradient[:] = gradient * 0.5 + weight  # the update must have read it
            if step % 3 == 0:
                weight *= 0.75
            if wait:
                mx.nd.waitall()
        return [weight, *read]

    expect_same(run("ocl_sgd", False), run("sgd", True))


def test_a_failed_gradient_is_an_error():
    weight = mx.nd.ones((5,))
    with pytest.raises(mx.base.MXNetError):
        failed = mx.nd.random.normal(0, -1, (5,))  # the engine notices when it runs this
        create("ocl_sgd", learning_rate=0.5).update(0, weight, failed, None)
        weight.asnumpy()


def test_arrays_may_go_before_the_update():
    weight = mx.nd.ones((500_000,))
    slow = mx.nd.ones((400, 400))
    for _ in range(20):
        slow = mx.nd.dot(slow, slow) * 0.001
    optimizer = create("ocl_sgd", learning_rate=0.5)
    optimizer.update(0, weight[:], mx.nd.ones((500_000,)) + 0 * slow[0, 0], None)
    del slow, optimizer
    assert (weight.asnumpy() == 0.5).all()


def test_threads_of_the_program():
    expected = [train(create("sgd", learning_rate=0.1, momentum=0.9), "float32", shapes=((400_001,), (9,)))]
    found = [None] * 4

    def work(place):
        found[place] = train(create("ocl_sgd", learning_rate=0.1, momentum=0.9), "float32", shapes=((400_001,), (9,)))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        expect_same(one, expected[0])


PROGRAM = """
import hashlib, os, sys
import clgraft.mxnet_ops
import mxnet as mx, numpy as np
def digest(pending=False):
    rng = np.random.default_rng(1)
    w, g = (mx.nd.array(rng.standard_normal(1_000_003).astype(np.float32)) for _ in range(2))
    updater = mx.optimizer.get_updater(mx.optimizer.create("ocl_adam", learning_rate=0.1, wd=0.01))
    for _ in range(4):
        updater([0], [g], [w])
    return None if pending else hashlib.sha256(w.asnumpy().tobytes()).hexdigest()
first = digest()
child = os.fork()
if not child:
    os._exit(0 if digest() == first else 1)
assert os.waitpid(child, 0)[1] == 0
assert digest() == first
digest(pending=True)
print(first)
"""


def test_number_of_threads_forks_and_exit():
    rng = np.random.default_rng(1)
    w, g = (mx.nd.array(rng.standard_normal(1_000_003).astype(np.float32)) for _ in range(2))
    updater = mx.optimizer.get_updater(create("adam", learning_rate=0.1, wd=0.01))
    for _ in range(4):
        updater(0, g, w)
    expected = hashlib.sha256(w.asnumpy().tobytes()).hexdigest()
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM],
            env={**os.environ, "CLGRAFT_UPDATE_THREADS": count},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for count in ("1", "5")
    ]
    for child in children:
        out, err = child.communicate(timeout=100)
        assert child.returncode == 0, err
        assert out.strip() == expected


def test_a_wrong_number_of_threads_is_an_error_of_the_first_update():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "CLGRAFT_UPDATE_THREADS": "all"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode and "[optimizer] got CLGRAFT_UPDATE_THREADS='all', expected a number" in done.stderr


@pytest.mark.parametrize(
    ("kind", "options", "given"),
    [
        ("sgd", {"momentum": 0.9}, {"momentum": 0.9}),
        ("nag", {"momentum": 0.9}, {"momentum": 0.9}),
        ("adagrad", {}, {}),
        ("rmsprop", {}, {}),
        ("rmsprop", {"momentum": 0.9, "centered": True}, {"centered": True}),
        ("adadelta", {}, {}),
        ("adam", {}, {}),
    ],
)
def test_the_cores_optimizers_have_mxnets_conventions(kind, options, given):
    weight = mx.nd.array(WEIGHT, dtype="float32")
    optimizer = mx.optimizer.create(kind, learning_rate=1.0, wd=0.1, clip_gradient=0.5, rescale_grad=0.5, **given)
    state = optimizer.create_state(0, weight)
    for gradient, rate in zip(GRADIENTS, RATES):
        optimizer.lr = rate
        optimizer.update(0, weight, mx.nd.array(gradient, dtype="float32"), state)
    if options.get("centered"):
        options = {**options, "clip_decayed": True}
    found = steps(kind, "mxnet", weight_decay=0.1, clip_gradient=0.5, rescale_grad=0.5, **options)
    np.testing.assert_allclose(found, weight.asnumpy(), rtol=3e-5, atol=3e-6)
