"""Swap of Gluon nets, those of the model zoo among them, in place and in every mode."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

import clgraft.mxnet_ops as ops
from clgraft.core import ProblemError, SelectionError
from tests.mxnet_ops.operator_checks import MODES, assert_close, random

# float64: what single precision makes of a net of 60 layers is no measure of equality
ROUNDING_GROWTH = 1e-9
NETS = {
    "resnet18_v1": lambda: vision.resnet18_v1(classes=7, prefix="net_"),
    "mobilenet1.0": lambda: vision.mobilenet1_0(classes=7, prefix="net_"),
    "mobilenetv2": lambda: vision.mobilenet_v2_0_5(classes=7, prefix="net_"),
}


def hybridize(net, mode) -> None:
    if mode != "plain":
        net.hybridize(static_alloc=mode == "static", static_shape=mode == "static")


def step(net, x, head) -> dict:
    """Train once; return outputs, gradients, and inference with the moving statistics of before."""
    data = mx.nd.array(x, dtype=x.dtype)
    data.attach_grad()
    found = {"inference": net(data).asnumpy()}
    with mx.autograd.record():
        y = net(data)
    y.backward(mx.nd.array(head, dtype=head.dtype))
    mx.nd.waitall()
    found.update(output=y.asnumpy(), data=data.grad.asnumpy())
    for name, parameter in net.collect_params().items():
        found[name] = (parameter.data() if parameter.grad_req == "null" else parameter.grad()).asnumpy()
    return found


@pytest.fixture(scope="module", params=NETS)
def zoo(request, tmp_path_factory):
    """A net of the zoo: how to make it, input, head gradient, a file of parameters, and the native results."""
    make, rng = NETS[request.param], np.random.default_rng(5)
    mx.random.seed(7)
    net = make()
    net.cast("float64")
    net.initialize(mx.init.Xavier(magnitude=2))
    x, head = random(rng, 2, 3, 40, 44, dtype="float64"), random(rng, 2, 7, dtype="float64")
    net(mx.nd.array(x, dtype="float64"))
    file = str(tmp_path_factory.mktemp("zoo") / "net.params")
    net.save_parameters(file)
    return make, x, head, file, step(net, x, head)


@pytest.mark.parametrize("mode", MODES)
def test_net_of_the_zoo(zoo, mode):
    make, x, head, file, expected = zoo
    net = make()
    net.cast("float64")
    report = ops.swap_block(net)
    assert len(report.replaced) > 40 and not any(row.operator == "Convolution" for row in report.kept)
    net.load_parameters(file)
    hybridize(net, mode)
    got = step(net, x, head)
    assert set(got) == set(expected)
    scale = max(np.abs(value).max() for name, value in expected.items() if "weight" in name)
    for name, value in expected.items():
        error = np.abs(got[name] - value).max() / max(np.abs(value).max(), 1e-3 * scale)
        assert error < ROUNDING_GROWTH, f"{name}: {error:.1e}"


def small(prefix="small_") -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(
            gluon.nn.Conv2D(8, 3, padding=1, use_bias=False),
            gluon.nn.BatchNorm(),
            gluon.nn.LeakyReLU(0.1),
            gluon.nn.Conv2D(8, 3, groups=8, padding=1),
            gluon.nn.MaxPool2D(),
            gluon.nn.PReLU(),
            gluon.nn.ELU(0.7),
            gluon.nn.GELU(),
            gluon.nn.Swish(),
            gluon.nn.Dense(4),
        )
    return net


@pytest.mark.parametrize("mode", MODES)
def test_layers_with_deferred_shapes(mode, rng):
    x, head = random(rng, 3, 5, 9, 8), random(rng, 3, 4)
    native, net = small(), small()
    native.initialize()
    native(mx.nd.array(x))
    ops.swap_block(net)
    net.initialize()
    hybridize(net, mode)
    net(mx.nd.array(x))  # infers shapes through clgraft operators
    for (name, mine), (other, theirs) in zip(net.collect_params().items(), native.collect_params().items()):
        assert name == other and mine.shape == theirs.shape
        mine.set_data(theirs.data())
    got, expected = step(net, x, head), step(native, x, head)
    for name, value in expected.items():
        assert_close(got[name], value, what=name)


def test_files_go_both_ways(tmp_path, rng):
    x = mx.nd.array(random(rng, 2, 5, 8, 8))
    net = small()
    net.initialize()
    ops.swap_block(net)
    net.hybridize()
    y = net(x).asnumpy()
    net.save_parameters(str(tmp_path / "net.params"))
    native = small()
    native.load_parameters(str(tmp_path / "net.params"))
    assert_close(native(x).asnumpy(), y)
    net.export(str(tmp_path / "net"))
    again = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    assert (again(x).asnumpy() == y).all()


def test_symbol_block(rng, tmp_path):
    x = mx.nd.array(random(rng, 2, 5, 8, 8))
    native = small()
    native.initialize()
    native.hybridize()
    y = native(x).asnumpy()
    native.export(str(tmp_path / "net"))
    net = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    report = ops.swap_block(net)
    assert len(report.replaced) >= 7
    assert_close(net(x).asnumpy(), y)
    assert "ocl_conv" in net._cached_graph[1].tojson()


class Outer(gluon.Block):
    """A block that cannot be hybridized, around one that can, and one of two inputs."""

    def __init__(self) -> None:
        super().__init__(prefix="outer_")
        with self.name_scope():
            self.inner = small()
            self.join = Join()

    def forward(self, x):
        y = self.inner(x)
        return self.join(y, y)


class Join(gluon.HybridBlock):
    """Arithmetic through F, with arrays and attributes by name and by position, and by Python's operators."""

    def hybrid_forward(self, F, a, b):
        total = F.elemwise_add(lhs=a, rhs=F.clip(b, -1, 1)) + F.add_n(a, b, a)
        return F.LeakyReLU(F.broadcast_maximum(total, b * 2), None, "leaky", slope=0.3) - F.Activation(a, "tanh")


@pytest.mark.parametrize("mode", MODES)
def test_blocks_of_several_inputs_within_plain_blocks(mode, rng):
    x = mx.nd.array(random(rng, 2, 5, 8, 8))
    net = Outer()
    net.initialize()
    y = net(x).asnumpy()
    report = ops.swap_block(net)
    assert any(row.became == "ocl_conv" for row in report.rows)
    assert any(row.operator == "Join" and "traced" in row.reason for row in report.kept)
    hybridize(net, mode)
    assert_close(net(x).asnumpy(), y)
    assert_close(net(x).asnumpy(), y)


def test_select_and_an_already_hybridized_net(rng):
    x = mx.nd.array(random(rng, 2, 5, 8, 8))
    net = small()
    net.initialize()
    net.hybridize()
    y = net(x).asnumpy()
    report = ops.swap_block(net, select="*conv*")
    assert {row.became for row in report.replaced} == {"ocl_conv", "ocl_depthwise_conv"}
    assert_close(net(x).asnumpy(), y)
    text = net._cached_graph[1].tojson()
    assert "ocl_conv" in text and "ocl_batchnorm" not in text
    net.hybridize(False)
    assert_close(net(x).asnumpy(), y)


def test_kind_of_block_and_its_printout_stay():
    net = small()
    before = repr(net)
    ops.swap_block(net)
    assert repr(net) == before and isinstance(net[0], gluon.nn.Conv2D) and type(net[0]).__name__ == "Conv2D"
    ops.swap_block(net)
    assert type(net[0]).__mro__[2] is not type(net[0]).__mro__[1]
    assert len([kind for kind in type(net[0]).__mro__ if kind.__name__ == "Conv2D"]) == 2


def test_training_with_a_trainer_follows_the_native_net(rng):
    x, labels = mx.nd.array(random(rng, 16, 5, 8, 8)), mx.nd.array(rng.integers(0, 4, 16))
    losses = []
    native = small()
    native.initialize(mx.init.Xavier())
    native(x)
    values = {name: p.data().copy() for name, p in native.collect_params().items()}
    for ours in (False, True):
        net = small()
        net.initialize()
        net(x)
        for name, value in values.items():
            net.collect_params()[name].set_data(value)
        if ours:
            ops.swap_block(net)
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        row = []
        for _ in range(6):
            with mx.autograd.record():
                value = loss(net(x), labels)
            value.backward()
            trainer.step(16)
            row.append(float(value.mean().asscalar()))
        losses.append(row)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)
    assert losses[0][-1] < losses[0][0]


class Asking(gluon.HybridBlock):
    """A block that looks at its F."""

    def hybrid_forward(self, F, x):
        assert F is mx.nd or F is mx.sym
        branches = {mx.nd: mx.nd.relu, mx.sym: mx.sym.relu}
        return F.sigmoid(branches[F](x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [lambda: gluon.nn.HybridLambda("relu"), Asking], ids=["lambda", "asking"])
def test_functions_come_from_mxnets_own_module(make, mode, rng):
    block = gluon.nn.HybridSequential()
    block.add(make(), gluon.nn.Activation("tanh"))
    x = mx.nd.array(random(rng, 2, 3))
    expected = block(x).asnumpy()
    ops.swap_block(block)
    hybridize(block, mode)
    assert_close(block(x).asnumpy(), expected)


def test_functions_are_replaced_only_while_a_swapped_block_computes(monkeypatch, rng):
    called = []
    custom = mx.nd.Custom
    monkeypatch.setattr(mx.nd, "Custom", lambda *a, **k: called.append(k["op_type"]) or custom(*a, **k))
    block, other, x = Asking(), Asking(), mx.nd.array(random(rng, 2, 3))
    ops.swap_block(block)
    other(x), mx.nd.sigmoid(x)
    assert not called
    block(x)
    assert called == ["ocl_activation"] * 2
    with pytest.raises(AssertionError):
        block.hybrid_forward(None, x)
    other(x)
    assert len(called) == 2


@pytest.mark.parametrize("whole", [True, False], ids=["net", "part"])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer_can_be_replaced_after_the_swap(mode, whole, rng):
    """As for fine-tuning; in a part, the block that holds the layer is not swapped itself."""
    net = vision.resnet18_v1(classes=100, prefix="net_")
    net.initialize()
    x = mx.nd.array(random(rng, 1, 3, 32, 32))
    net(x)
    report = ops.swap_block(net if whole else net.output)
    assert "swap_block is called again" in str(report)
    hybridize(net, mode)
    net(x)
    with net.name_scope():
        net.output = gluon.nn.Dense(10)
    net.output.initialize()
    assert type(net.output) is gluon.nn.Dense
    native = net.output(net.features(x)).asnumpy()
    assert_close(net(x).asnumpy(), native)
    report = ops.swap_block(net)
    assert type(net.output) is not gluon.nn.Dense and isinstance(net.output, gluon.nn.Dense)
    assert "ocl_fully_connected" in str(report)
    assert_close(net(x).asnumpy(), native)
    with pytest.raises(TypeError):
        net.output = gluon.nn.Activation("relu")


@pytest.mark.parametrize(
    ("swap", "given", "words"),
    [
        (ops.swap_block, None, "got NoneType, expected a gluon.Block"),
        (ops.swap_block, mx.sym.var("x"), r"got Symbol, expected a gluon.Block \(swap_symbol takes symbols\)"),
        (ops.swap_symbol, None, "got NoneType, expected an mx.sym.Symbol"),
        (ops.swap_symbol, gluon.nn.Dense(3), r"got Dense, expected an mx.sym.Symbol \(swap_block takes Gluon nets\)"),
    ],
)
def test_what_is_no_net_or_no_symbol_is_named(swap, given, words):
    with pytest.raises(ProblemError, match=rf"^\[swap\] {words}$"):
        swap(given)


def test_a_select_that_matches_nothing_is_an_error_and_leaves_the_net():
    net = small()
    with pytest.raises(SelectionError, match=r"got select Convolutoin, expected .* such as Convolution"):
        ops.swap_block(net, select="Convolutoin")
    assert type(net) is gluon.nn.HybridSequential and type(net[0]).__mro__[1] is not gluon.nn.Conv2D
    report = ops.swap_block(net, select=["Convolution", "Polling"])
    assert "note: no operator matches Polling" in str(report)


def test_a_block_that_cannot_be_traced_alone_takes_any_select():
    class Both(gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return F.broadcast_add(x, y)

    assert ops.swap_block(Both(), select="broadcast_add").rows


def test_a_net_that_was_swapped_before_says_so():
    net = small()
    assert "already swapped" not in str(ops.swap_block(net))
    assert "note: already swapped: what this call says" in str(ops.swap_block(net))


def test_a_net_that_is_swapped_as_a_whole_says_what_onednn_costs(monkeypatch):
    for there in (True, False):
        monkeypatch.setattr("clgraft.mxnet_ops.swap.block.COPIES", there)
        assert ("MXNET_MKLDNN_ENABLED=0" in str(ops.swap_block(small(), regions=True))) == there
    monkeypatch.setattr("clgraft.mxnet_ops.swap.block.COPIES", True)
    assert "MXNET_MKLDNN_ENABLED" not in str(ops.swap_block(small(), regions=True, select=["Convolution"]))
