"""Regions compute what their operators compute one by one: executors, Module, Gluon, and files."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

import clgraft.mxnet_ops as ops
from clgraft import core
from clgraft.mxnet_ops.regions import execution
from tests.mxnet_ops.operator_checks import assert_close, evaluate, random

sym = mx.sym
NO_PASSES = "-all"
DATA, LABEL = (2, 3, 8, 8), (2,)


@pytest.fixture
def no_passes(monkeypatch):
    """Switch off what changes the order of sums: the bits are then those of single operators."""
    monkeypatch.setenv("CLGRAFT_GRAPH", NO_PASSES)


def small(dropout: bool = True) -> mx.sym.Symbol:
    """Return a net with a shortcut, batch norm, dropout, concat, pooling, dense and a loss."""
    first = sym.Convolution(sym.var("data"), kernel=(3, 3), pad=(1, 1), num_filter=6, name="conv0")
    norm = sym.BatchNorm(first, fix_gamma=False, name="norm0")
    relu = sym.Activation(norm, act_type="relu", name="relu0")
    second = sym.Convolution(relu, kernel=(3, 3), pad=(1, 1), num_filter=6, no_bias=True, name="conv1")
    shortcut = sym.elemwise_add(sym.BatchNorm(second, name="norm1"), relu, name="shortcut")
    joined = sym.Concat(shortcut, first, dim=1, name="joined")
    if dropout:
        joined = sym.Dropout(joined, p=0.3, name="dropout")
    pooled = sym.Pooling(joined, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    return sym.FullyConnected(pooled, num_hidden=5, name="dense")


def with_loss(**options) -> mx.sym.Symbol:
    return sym.SoftmaxOutput(small(**options), name="softmax")


def both(symbol: mx.sym.Symbol, **options):
    """Return the symbol swapped operator by operator, with regions, and the regions' report."""
    joined, report = ops.swap_symbol(symbol, regions=True, **options)
    return ops.swap_symbol(symbol, regions=False, **options)[0], joined, report


def region_nodes(symbol: mx.sym.Symbol) -> list[dict]:
    nodes = json.loads(symbol.tojson())["nodes"]
    return [node for node in nodes if node.get("attrs", {}).get("op_type") == "ocl_region"]


def arrays_of(symbol: mx.sym.Symbol, rng, **known) -> tuple[dict, dict]:
    """Return arguments and auxiliary states."""
    shapes, _, states = symbol.infer_shape(**known)
    given = {name: 0.3 * random(rng, *shape) for name, shape in zip(symbol.list_arguments(), shapes)}
    for name in given:
        if name.endswith("label"):
            given[name] = rng.integers(0, 5, given[name].shape).astype("float32")
    own = {name: np.abs(random(rng, *shape)) + 0.5 for name, shape in zip(symbol.list_auxiliary_states(), states)}
    return given, own


def compare(first, second, exact: bool = True) -> None:
    """Compare two evaluations of `operator_checks`."""
    for i, (a, b) in enumerate(zip(first.outputs, second.outputs)):
        check(b, a, f"output {i}", exact)
    for group in ("gradients", "auxiliary"):
        before, after = getattr(first, group), getattr(second, group)
        assert list(before) == list(after)
        for name in before:
            check(after[name], before[name], name, exact)


def check(got: np.ndarray, expected: np.ndarray, what: str, exact: bool) -> None:
    if exact:
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=what)
    if not np.isnan(expected).all():  # a gradient that nobody asked for holds what it held before
        assert_close(got, expected, what=what)


def test_the_outside_of_a_symbol_stays():
    symbol = with_loss()
    one, joined, report = both(symbol)
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        assert getattr(joined, names)() == getattr(symbol, names)() == getattr(one, names)()
    assert len(region_nodes(joined)) == 1 and not region_nodes(one)
    assert joined.infer_shape(data=DATA) == symbol.infer_shape(data=DATA)
    inside = report.regions["softmax"]
    assert len(inside) == 11 and {"conv0", "norm1", "shortcut", "softmax"} <= set(inside)
    assert "regions: softmax (11 operators)" in str(report)
    hidden = {"conv0_output", "shortcut_output"}
    assert hidden <= set(one.get_internals().list_outputs()) and not hidden & set(joined.get_internals().list_outputs())


def test_adaptive_pooling_is_part_of_a_region(no_passes, rng):
    first = sym.Activation(sym.var("data"), act_type="tanh", name="tanh0")
    pool = sym.Custom(first, op_type="ocl_adaptive_max_pooling", output_size=(3, 2), name="adaptive")
    indices = sym.Activation(pool[1], act_type="relu", name="relu0")
    one, joined, report = both(sym.Group([sym.FullyConnected(pool[0], num_hidden=5, name="dense"), indices]))
    assert any("adaptive" in inside for inside in report.regions.values()), report
    arrays, states = arrays_of(one, rng, data=(2, 3, 7, 5))
    heads = [random(rng, 2, 5), random(rng, 2, 3, 3, 2)]
    compare(*(evaluate(symbol, arrays, heads, auxiliary=states) for symbol in (one, joined)))


def joined_like_single(symbol: mx.sym.Symbol, rng, names: set[str], **known) -> None:
    """Compare a symbol of operators of clgraft with one region that holds these, bit by bit."""
    one, joined, report = both(symbol)
    assert [set(inside) for inside in report.regions.values()] == [names], str(report)
    arrays, states = arrays_of(one, rng, **known)
    shapes = one.infer_shape(**known)[1]
    heads = [random(rng, *shape) for shape in shapes]
    for requests in ("write", "add"):
        found = (evaluate(s, arrays, heads, requests=requests, start=0.5, auxiliary=states) for s in (one, joined))
        compare(*found)


def test_a_loss_inside_learns_whatever_reads_it(no_passes, rng):
    dense = sym.FullyConnected(sym.var("data"), num_hidden=5, name="dense")
    softmax = sym.SoftmaxOutput(dense, name="softmax")
    keys = {"expression": "y0 = floor(2 * x0);", "gradient": "none"}
    floor = sym.Custom(softmax, op_type="ocl_pointwise", name="floor", **keys)
    one, joined, report = both(floor)
    assert list(map(set, report.regions.values())) == [{"dense", "softmax", "floor"}]
    arrays, _ = arrays_of(one, rng, data=(4, 3))
    head = random(rng, 4, 5)
    found = [evaluate(symbol, arrays, [head]) for symbol in (one, joined)]
    compare(*found)
    assert np.abs(found[1].gradients["data"]).max() > 0


def test_statistics_are_read_inside_and_pass_no_gradient_on(no_passes, rng):
    first = sym.tanh(sym.var("data"), name="first")
    norm = sym.Custom(first, op_type="ocl_batchnorm", output_mean_var=True, name="norm")
    heads = [sym.sigmoid(norm[0], name="y"), sym.tanh(norm[1], name="mean"), sym.tanh(norm[2], name="inverse")]
    joined_like_single(sym.Group(heads), rng, {"first", "norm", "y", "mean", "inverse"}, data=DATA)


@pytest.mark.parametrize("gradient", ["dx0 = dy0 * x1 + dy1; dx1 = dy0 * x0;", "dx0 = dy0 * y1; dx1 = dy1 * x0;"])
@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)], ids=str)
def test_an_expression_of_several_outputs_is_part_of_a_region(no_passes, rng, read, gradient):
    a, b = (sym.tanh(sym.var(name), name=f"first_{name}") for name in "ab")
    keys = {"expression": "y0 = x0 * x1; y1 = scale * x0;", "gradient": gradient, "scalars": {"scale": 0.5}}
    own = sym.Custom(a, b, op_type="ocl_pointwise", num_args=2, name="own", **keys)
    heads = [sym.sigmoid(own[place], name=f"last_{place}") for place in read]
    names = {"first_a", "first_b", "own", *(f"last_{place}" for place in read)}
    joined_like_single(sym.Group(heads), rng, names, a=(3, 4), b=(3, 4))


def test_moving_statistics_wait_for_a_gradient_of_their_norm(no_passes, rng):
    data, other = sym.var("data"), sym.var("other")
    norm = sym.BatchNorm(sym.tanh(data, name="first"), fix_gamma=True, name="norm")
    one, joined, _ = both(sym.elemwise_add(norm, sym.tanh(other, name="second"), name="sum"))
    assert len(region_nodes(joined)) == 1
    arrays, states = arrays_of(one, rng, data=DATA, other=DATA)
    head = random(rng, *DATA)
    for learned in ("other", "norm_gamma", "data"):
        requests = {name: "write" if name == learned else "null" for name in one.list_arguments()}
        found = [evaluate(s, arrays, [head], requests=requests, auxiliary=states) for s in (one, joined)]
        compare(*found)
        for name, value in found[1].auxiliary.items():
            assert np.array_equal(value, states[name]) == (learned == "other")


@pytest.mark.parametrize("requests", ["write", "add", "mixed"])
@pytest.mark.parametrize("train", [True, False])
def test_bits_of_single_operators(no_passes, rng, requests, train):
    one, joined, _ = both(with_loss())
    arrays, states = arrays_of(one, rng, data=DATA)
    if requests == "mixed":
        names = one.list_arguments()
        requests = {name: ("write", "null", "add")[i % 3] for i, name in enumerate(names)}
    found = []
    for symbol in (one, joined):
        mx.random.seed(11)
        found.append(evaluate(symbol, arrays, [], requests=requests, start=0.5, train=train, auxiliary=states))
    compare(*found)
    if train:
        assert not np.array_equal(found[0].auxiliary["norm0_moving_mean"], states["norm0_moving_mean"])


@pytest.mark.parametrize("requests", ["write", "add", "mixed"])
def test_with_passes_the_results_differ_by_rounding_only(rng, monkeypatch, requests):
    monkeypatch.delenv("CLGRAFT_GRAPH", raising=False)
    one, joined, _ = both(with_loss())
    arrays, states = arrays_of(one, rng, data=DATA)
    if requests == "mixed":
        requests = {name: ("add", "null", "write")[i % 3] for i, name in enumerate(one.list_arguments())}
    for train in (True, False):
        found = []
        for symbol in (one, joined):
            mx.random.seed(11)
            options = {"requests": requests, "start": 0.5, "train": train, "auxiliary": states}
            found.append(evaluate(symbol, arrays, [], **options))
        compare(*found, exact=False)


@pytest.mark.parametrize("act_type", ["relu", "clip"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_norms_take_activations_across_forward_and_backward(rng, monkeypatch, act_type, dtype):
    """Each norm's value is neither written nor kept: its gradient computes it again."""
    monkeypatch.delenv("CLGRAFT_GRAPH", raising=False)
    programs, keep = [], execution.RegionProgram.take
    monkeypatch.setattr(execution.RegionProgram, "take", lambda self: programs.append(self) or keep(self))

    def active(x, name):
        return (
            sym.clip(x, -0.2, 0.7, name=name) if act_type == "clip" else sym.Activation(x, act_type="relu", name=name)
        )

    value = sym.var("data")
    for i in range(3):
        value = sym.Convolution(value, kernel=(3, 3), pad=(1, 1), num_filter=5, no_bias=True, name=f"conv{i}")
        value = active(sym.BatchNorm(value, fix_gamma=i == 1, name=f"norm{i}"), f"act{i}")
    one, joined, report = both(value)
    assert len(report.regions) == 1
    arrays, states = arrays_of(one, rng, data=DATA)
    arrays, states = ({n: a.astype(dtype) for n, a in group.items()} for group in (arrays, states))
    head = random(rng, 2, 5, 8, 8, dtype=dtype)
    for train in (True, False):
        compare(*(evaluate(each, arrays, [head], train=train, auxiliary=states) for each in (one, joined)), exact=False)
    lowering = programs[0].lowering
    for lowered in (lowering.forward(True), lowering.backward(True, range(len(one.list_arguments())))):
        kinds = [node.problem.kind for node in lowered.graph.nodes]
        assert kinds.count("batchnorm") >= 3 and "pointwise" not in kinds
    values = lowering.forward(True).graph.values
    whole = [name for name in lowering.kept if values[name].size == 2 * 5 * 64]
    assert len(whole) == 3 + 2  # of each convolution, and of each activation that another convolution reads


def test_what_lives_until_backward_is_one_block(rng, monkeypatch):
    """The system has huge pages for a large block, not for many small arrays."""
    taken, take = [], execution.RegionProgram.take
    monkeypatch.setattr(execution.RegionProgram, "take", lambda self: taken.append(take(self)) or taken[-1])
    one, joined, _ = both(with_loss(dropout=False))
    arrays, states = arrays_of(one, rng, data=(3, *DATA[1:]))
    compare(*(evaluate(each, arrays, [], auxiliary=states) for each in (one, joined)))
    kept = [array for array in max(taken, key=len).values() if array.size]
    assert len(kept) > 2
    places = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in kept)
    assert all(start % 128 == 0 for start, _ in places)
    gaps = [start - end for (_, end), (start, _) in zip(places, places[1:])]
    assert all(0 <= gap < 128 for gap in gaps)


@pytest.mark.parametrize("last", ["leaky", "pool"])
def test_a_backward_reads_no_output_that_mxnet_does_not_hand_over(rng, monkeypatch, last):
    """Gradients of rectifiers read results and maxima, but not those that leave the region."""
    monkeypatch.delenv("CLGRAFT_GRAPH", raising=False)
    value = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    if last == "leaky":
        value = sym.LeakyReLU(value, act_type="leaky", slope=0.3, name="leaky")
    else:
        value = sym.Activation(value, act_type="relu", name="relu")
        value = sym.Pooling(value, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    one, joined, report = both(sym.arctan(value, name="native"))
    assert list(report.regions) == [last]
    arrays, states = arrays_of(one, rng, data=DATA)
    head = random(rng, *one.infer_shape(data=DATA)[1][0])
    for requests in ("write", "add"):
        options = {"requests": requests, "start": 0.5, "auxiliary": states}
        compare(*(evaluate(each, arrays, [head], **options) for each in (one, joined)), exact=False)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(no_passes, rng, dtype):
    one, joined, _ = both(small())
    arrays, states = arrays_of(one, rng, data=DATA)
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    states = {name: array.astype(dtype) for name, array in states.items()}
    head, found = random(rng, 2, 5, dtype=dtype), []
    for symbol in (one, joined):
        mx.random.seed(2)
        found.append(evaluate(symbol, arrays, [head], auxiliary=states))
    compare(*found)


def test_values_that_are_outputs_stay_visible(no_passes, rng):
    net = small(dropout=False)
    inner = net.get_internals()
    symbol = sym.Group([inner["relu0_output"], sym.SoftmaxOutput(net, name="softmax"), inner["conv0_output"]])
    one, joined, _ = both(symbol)
    assert joined.list_outputs() == symbol.list_outputs()
    arrays, states = arrays_of(one, rng, data=DATA)
    heads = [random(rng, 2, 6, 8, 8), random(rng, 2, 5), random(rng, 2, 6, 8, 8)]
    # three gradients meet at relu0 and at conv0, and MXNet adds them in an order of its own
    compare(*(evaluate(each, arrays, heads, auxiliary=states) for each in (one, joined)), exact=False)


def test_losses_need_no_gradient_from_outside(no_passes, rng):
    net = small(dropout=False)
    losses = [sym.SoftmaxOutput(net, sym.var(f"label{i}"), grad_scale=1 + i, name=f"loss{i}") for i in range(2)]
    one, joined, _ = both(sym.Group(losses))
    assert len(region_nodes(joined)) == 1
    arrays, states = arrays_of(one, rng, data=DATA)
    arrays.update(label0=np.float32([1, 3]), label1=np.float32([0, 4]))
    compare(*(evaluate(each, arrays, [], auxiliary=states) for each in (one, joined)))


def test_a_native_operator_splits_regions(no_passes, rng):
    first = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=4, name="conv0")
    relu = sym.Activation(first, act_type="relu", name="relu0")
    native = sym.arctan(relu, name="middle")
    total = sym.elemwise_add(native, relu, name="total")
    symbol = sym.Pooling(total, kernel=(2, 2), pool_type="avg", name="pool")
    one, joined, report = both(symbol)
    # conv0 and relu0 cannot be with total: middle lies between them
    assert {name: set(inside) for name, inside in report.regions.items()} == {
        "relu0": {"conv0", "relu0"},
        "pool": {"total", "pool"},
    }
    assert [(row.name, row.reason) for row in report.kept] == [("middle", "no grafted operator computes it")]
    arrays, states = arrays_of(one, rng, data=DATA)
    head = random(rng, 2, 4, 5, 5)
    compare(*(evaluate(each, arrays, [head], auxiliary=states) for each in (one, joined)))


def test_frozen_layers_keep_their_statistics(no_passes, rng):
    """MXNet runs no backward where no gradient is asked for, and batch norm updates its statistics there."""
    one, joined, _ = both(with_loss(dropout=False))
    arrays, states = arrays_of(one, rng, data=DATA)
    frozen = ("data", "conv0", "norm0", "softmax")
    requests = {name: "null" if name.startswith(frozen) else "write" for name in one.list_arguments()}
    first, second = (evaluate(each, arrays, [], requests=requests, auxiliary=states) for each in (one, joined))
    compare(first, second)
    np.testing.assert_array_equal(second.auxiliary["norm0_moving_mean"], states["norm0_moving_mean"])
    assert not np.array_equal(second.auxiliary["norm1_moving_mean"], states["norm1_moving_mean"])


def test_an_array_that_is_read_twice_and_a_parameter_that_is_shared(no_passes, rng):
    weight, x = sym.var("weight"), sym.var("data")
    first = sym.FullyConnected(x, weight, num_hidden=6, no_bias=True, name="first")
    square = sym.elemwise_mul(first, first, name="square")
    second = sym.FullyConnected(square, weight, num_hidden=6, no_bias=True, name="second")
    one, joined, report = both(sym.elemwise_add(second, x, name="sum"))
    assert list(report.regions) == ["sum"]
    arrays = {"data": random(rng, 4, 6), "weight": random(rng, 6, 6)}
    head = random(rng, 4, 6)
    for requests in ("write", "add"):
        found = [evaluate(each, arrays, [head], requests=requests, start=0.25) for each in (one, joined)]
        compare(*found)


def test_symbols_are_saved_and_loaded(no_passes, rng, tmp_path):
    one, joined, _ = both(with_loss())
    arrays, states = arrays_of(one, rng, data=DATA)
    joined.save(str(tmp_path / "net.json"))
    found = []
    for symbol in (one, mx.sym.load(str(tmp_path / "net.json"))):
        mx.random.seed(4)
        found.append(evaluate(symbol, arrays, [], auxiliary=states))
    compare(*found)


def test_module_trains(no_passes, rng, tmp_path):
    images = random(rng, 12, *DATA[1:])
    labels = rng.integers(0, 5, 12).astype("float32")
    symbol, parameters = with_loss(), {}
    for regions in (False, True):
        module = mx.mod.Module(ops.swap_symbol(symbol, regions=regions)[0], context=mx.cpu())
        mx.random.seed(3)
        np.random.seed(3)
        module.fit(
            mx.io.NDArrayIter(images, labels, 4),
            num_epoch=2,
            kvstore="local",
            optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
            initializer=mx.init.Xavier(),
        )
        module.save_checkpoint(str(tmp_path / f"net{regions}"), 2)
        parameters[regions] = mx.nd.load(str(tmp_path / f"net{regions}-0002.params"))
    assert set(parameters[False]) == set(parameters[True])
    for name, array in parameters[False].items():
        np.testing.assert_array_equal(parameters[True][name].asnumpy(), array.asnumpy(), err_msg=name)


def residual() -> gluon.nn.HybridSequential:
    return vision.resnet18_v1(classes=4, prefix="net_")


def depthwise() -> gluon.nn.HybridSequential:
    return vision.mobilenet0_25(classes=4, prefix="net_")


def swapped(make, file, regions: bool, fuse: bool = False, **hybrid):
    net = make()
    report = ops.swap_block(net, regions=regions, fuse=fuse)
    net.load_parameters(file)
    net.hybridize(**hybrid)
    return net, report


@pytest.fixture(scope="module", params=[residual, depthwise])
def zoo(request, tmp_path_factory):
    """A net of the zoo: how to make it, and a file of its parameters."""
    mx.random.seed(7)
    net = request.param()
    net.initialize(mx.init.Xavier(magnitude=2))
    net(mx.nd.zeros((1, 3, 32, 32)))
    file = str(tmp_path_factory.mktemp("zoo") / "net.params")
    net.save_parameters(file)
    return request.param, file


def step(net, *batches, train_mode: bool = True) -> dict[str, np.ndarray]:
    """Run all batches forward, then all backward; return outputs, gradients and statistics."""
    inputs = [mx.nd.array(batch) for batch in batches]
    for x in inputs:
        x.attach_grad()
    with mx.autograd.record(train_mode=train_mode):
        outputs = [net(x) for x in inputs]
    found = {f"output{i}": y.asnumpy() for i, y in enumerate(outputs)}
    for i, y in enumerate(outputs):
        # freeing what the outputs share, their parameters' nodes, ends the later ones' backward in MXNet
        y.backward(mx.nd.array(np.random.default_rng(i).standard_normal(y.shape)), retain_graph=len(inputs) > 1)
        mx.nd.waitall()
        for name, parameter in net.collect_params().items():
            array = parameter.data() if parameter.grad_req == "null" else parameter.grad()
            found[f"{i} {name}"] = array.asnumpy()
    found.update({f"data{i}": x.grad.asnumpy() for i, x in enumerate(inputs)})
    found["inference"] = net(inputs[0]).asnumpy()
    return found


@pytest.mark.parametrize("regions", [False, True], ids=["chains", "regions"])
@pytest.mark.parametrize("static", [False, True])
def test_net_of_the_zoo(no_passes, zoo, rng, static, regions):
    make, file = zoo
    batches = [random(rng, 2, 3, 32, 32), random(rng, 1, 3, 32, 32), random(rng, 2, 3, 32, 32)]
    one, _ = swapped(make, file, False, static_alloc=static)
    net, report = swapped(make, file, regions, True, static_alloc=static)
    assert len(report.regions) == 1 if regions else len(report.regions) > 10
    assert list(one.collect_params()) == list(net.collect_params())
    for given in (batches[:1], batches):  # several forwards before a backward, of several sizes
        expected, found = step(one, *given), step(net, *given)
        assert list(found) == list(expected)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_backward_of_a_forward_that_did_not_train(no_passes, zoo, rng):
    make, file = zoo
    batch = random(rng, 2, 3, 32, 32)
    expected, found = (step(swapped(make, file, regions)[0], batch, train_mode=False) for regions in (False, True))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_trainer_and_an_export(no_passes, zoo, rng, tmp_path):
    make, file = zoo
    batch, parameters = mx.nd.array(random(rng, 2, 3, 32, 32)), []
    for regions in (False, True):
        net, _ = swapped(make, file, regions)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        for _ in range(2):
            with mx.autograd.record():
                loss = (net(batch) ** 2).sum()
            loss.backward()
            trainer.step(2)
        parameters.append({name: value.data().asnumpy() for name, value in net.collect_params().items()})
    for name, expected in parameters[0].items():
        np.testing.assert_array_equal(parameters[1][name], expected, err_msg=name)
    net.export(str(tmp_path / "net"))
    again = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    np.testing.assert_array_equal(again(batch).asnumpy(), net(batch).asnumpy())


def test_a_backward_may_be_repeated(no_passes, rng):
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("tanh"), gluon.nn.Dense(3))
    net.initialize()
    assert ops.swap_block(net, regions=True).regions
    net.hybridize()
    x = mx.nd.array(random(rng, 2, 3, 6, 6))
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
    y.backward(retain_graph=True)
    first = x.grad.asnumpy()
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), first)
    assert np.abs(first).max() > 0


def test_random_numbers_follow_the_seed(rng):
    _, joined, _ = both(sym.Dropout(sym.relu(sym.var("data", dtype="float32")), p=0.5, name="drop"))
    executor = joined.simple_bind(mx.cpu(), data=(4, 64))
    executor.arg_dict["data"][:] = 1

    def draws() -> list[np.ndarray]:
        mx.random.seed(5)
        return [executor.forward(is_train=True)[0].asnumpy() for _ in range(2)]

    first, again = draws(), draws()
    assert not np.array_equal(first[0], first[1]) and set(np.unique(first[0])) == {0.0, 2.0}
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    executor.backward(mx.nd.ones((4, 64)))
    np.testing.assert_array_equal(executor.grad_dict["data"].asnumpy(), first[1])


def test_an_error_names_what_does_not_fit(rng):
    _, joined, _ = both(small())
    with pytest.raises(mx.MXNetError):
        joined.infer_shape(data=(2, 3))


def test_saved_values_on_a_device_with_memory_of_its_own(no_passes, staged, rng):
    one, joined, _ = both(with_loss(dropout=False))
    arrays, states = arrays_of(one, rng, data=(3, *DATA[1:]))
    found = [evaluate(each, arrays, [], auxiliary=states) for each in (one, joined)]
    assert staged.counters()["bytes_to_device"] > 0
    compare(*found)


# largest error of outputs and gradients, relative to the norm of each: of a few layers and of kinks
OF_TYPES = {"float16": 0.05, "bfloat16": 0.3}


@pytest.mark.parametrize("precision", sorted(OF_TYPES))
def test_a_precision_changes_types_inside_alone(precision, rng):
    """Arrays, names and files are those of float32; values that backward reads are kept in 16 bits."""
    symbol = with_loss(dropout=False)
    swapped, report = ops.swap_symbol(symbol, regions=True, precision=precision)
    assert f"regions in {precision}" in str(report)
    assert [node["attrs"]["precision"] for node in region_nodes(swapped)] == [precision]
    arrays, states = arrays_of(symbol, rng, data=DATA, softmax_label=LABEL)
    wide = ops.swap_symbol(symbol, regions=True)[0]
    for train in (True, False):
        exact, found = (evaluate(each, arrays, [], auxiliary=states, train=train) for each in (wide, swapped))
        pairs = [
            *zip(exact.outputs, found.outputs),
            *((exact.gradients[n], found.gradients[n]) for n in exact.gradients),
        ]
        largest = max(np.linalg.norm(a) for a, _ in pairs)
        for a, b in pairs:
            assert b.dtype == np.float32
            assert np.linalg.norm(a - b) <= OF_TYPES[precision] * np.linalg.norm(a) + 1e-2 * largest
    with pytest.raises(core.ProblemError, match="without regions"):
        ops.swap_symbol(symbol, regions=False, precision=precision)


@pytest.mark.parametrize("precision", sorted(OF_TYPES))
def test_symbols_of_amp_become_regions_of_its_type(precision):
    from mxnet.contrib import amp

    symbol = small(dropout=False)
    converted = amp.convert_symbol(symbol, target_dtype=precision)
    swapped, _ = ops.swap_symbol(converted, regions=True)
    assert [node["attrs"].get("precision") for node in region_nodes(swapped)] == [precision]
    assert swapped.list_arguments() == converted.list_arguments()
    assert swapped.list_outputs() == converted.list_outputs()


@pytest.mark.parametrize("regions", [True, False])
@pytest.mark.parametrize("precision", sorted(OF_TYPES))
def test_parameters_that_amp_has_cast(precision, regions, rng):
    """They stay arrays of 16 bits, and without regions everything else computes in float32, too."""
    from mxnet.contrib import amp

    symbol = small(dropout=False)
    arrays = arrays_of(symbol, rng, data=DATA)
    given, auxiliary = ({name: mx.nd.array(value) for name, value in one.items()} for one in arrays)
    expected = symbol.bind(mx.cpu(), given, aux_states=auxiliary).forward(is_train=False)[0].asnumpy()
    parameters = {name: value for name, value in given.items() if name != "data"}
    made, parameters, auxiliary = amp.convert_model(
        symbol, parameters, auxiliary, target_dtype=precision, cast_optional_params=True
    )
    assert any(value.dtype != np.float32 for value in parameters.values())
    swapped, report = ops.swap_symbol(made, regions=regions)
    assert swapped.list_arguments() == made.list_arguments()
    assert {row.operator for row in report.kept} <= {"Cast", "amp_cast"}
    assert not any("void" in row.reason for row in report.kept)
    executor = swapped.bind(mx.cpu(), {**parameters, "data": given["data"]}, aux_states=auxiliary)
    found = executor.forward(is_train=False)[0].asnumpy()
    assert np.linalg.norm(found - expected) <= OF_TYPES[precision] * np.linalg.norm(expected)


def test_the_scaler_of_amp_sees_infinite_gradients_of_regions():
    from mxnet.contrib.amp.loss_scaler import LossScaler

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.Activation("relu"), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    ops.swap_block(net, precision="float16")
    net.hybridize()
    x, found = mx.nd.ones((2, 3, 6, 6)), []
    for scale in (1.0, 2.0**30):
        with mx.autograd.record():
            loss = net(x).sum() * scale
        loss.backward()
        found.append(LossScaler().has_overflow(list(net.collect_params().values())))
    assert found == [False, True]
