"""Modules whose parameters live on the device: training is that of MXNet's modules."""

from __future__ import annotations

import gc

import mxnet as mx
import numpy as np
import pytest

import clgraft.mxnet_ops as ops
from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine import residents
from clgraft.mxnet_ops.engine.residents import resident_of
from tests.mxnet_ops.operator_checks import random
from tests.mxnet_ops.trainers import BATCH


def symbol() -> mx.sym.Symbol:
    """Return a small classifier with moving statistics."""
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="fc1")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn")
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="tanh", name="act"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def swapped(**more) -> mx.sym.Symbol:
    return ops.swap_symbol(symbol(), regions=True, **more)[0]


def modules(frozen=False, **more):
    """Return a module of MXNet's operators, and one that is to have residents."""
    return mx.mod.Module(symbol(), **more), ops.resident(mx.mod.Module(swapped(frozen=frozen), **more))


def classes(rng, count, batch=BATCH, dtype="float32"):
    """Return an iterator of data and labels."""
    data, labels = random(rng, count, 5).astype(dtype), rng.integers(0, 3, count).astype("float32")
    return mx.io.NDArrayIter(mx.nd.array(data, dtype=dtype), mx.nd.array(labels, dtype=dtype), batch)


def prepared(pair, batches, optimizer="sgd", given=None, **more):
    """Bind modules with the same parameters and make their optimizers."""
    for module in pair:
        module.bind(batches.provide_data, batches.provide_label, **more)
        if module is pair[0]:
            mx.random.seed(3)
            module.init_params(mx.init.Uniform(0.5))
        else:
            module.init_params(None, *pair[0].get_params())
        module.init_optimizer(optimizer=optimizer, optimizer_params=dict(given or {}))
    return pair


def finish(module):
    """Wait for the moving statistics of MXNet's batch norm: who reads them does not wait for the backward."""
    if not places_of(module):
        mx.nd.waitall()


def steps(module, batches, count=None):
    batches.reset()
    for number, batch in enumerate(batches):
        if number == count:
            break
        module.forward_backward(batch)
        module.update()
    finish(module)


def same(pair, rtol=1e-4, atol=2e-6):
    for a, b in zip(*(module.get_params() for module in pair)):
        for name in a:
            np.testing.assert_allclose(b[name].asnumpy(), a[name].asnumpy(), rtol, atol, err_msg=name)


def places_of(module):
    executor = module._exec_group.execs[0]
    found = [resident_of(array) for name, array in {**executor.arg_dict, **executor.aux_dict}.items()]
    return [one.place for one in found if one is not None]


def test_module_fit_is_that_of_mxnet(staged, rng, tmp_path):
    train, held = classes(rng, 6 * BATCH), classes(rng, 2 * BATCH + 1)
    given = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    pair, seen = modules(), []

    def see(step):
        found.extend(value for _, value in step.eval_metric.get_name_value())
        finish(pair[len(seen)])

    for number, module in enumerate(pair):
        found = []
        train.reset()
        mx.random.seed(3)
        schedule = mx.lr_scheduler.PolyScheduler(max_update=20, base_lr=0.1, warmup_steps=3)
        module.fit(
            train,
            held,
            optimizer="sgd",
            optimizer_params={**given, "lr_scheduler": schedule, "begin_num_update": 2},
            initializer=mx.init.Uniform(0.5),
            eval_metric=["acc", "ce"],
            batch_end_callback=see,
            eval_end_callback=see,
            epoch_end_callback=mx.callback.module_checkpoint(module, str(tmp_path / str(number)), 1, True),
            num_epoch=2,
        )
        seen.append(found)
    np.testing.assert_allclose(seen[1], seen[0], 1e-4, 1e-5)
    same(pair)
    assert pair[1].host == {} and len(places_of(pair[1])) == 7
    # files of either continue in both
    again = [mx.mod.Module.load(str(tmp_path / number), 2, True) for number in ("0", "1")]
    swapped().save(str(tmp_path / "0-symbol.json"))
    again += [ops.resident(mx.mod.Module.load(str(tmp_path / number), 2, True)) for number in ("0", "1")]
    for module in (*pair, *again):
        if module in again:
            module.bind(train.provide_data, train.provide_label)
            module.init_optimizer(optimizer="sgd", optimizer_params=given)
        else:
            module._optimizer.lr_scheduler, module._optimizer.lr = None, 0.1
        steps(module, train, 3)
        same((pair[0], module))
        assert bool(places_of(module)) == (module in (pair[1], *again[2:]))


def test_module_sends_only_inputs_and_outputs(staged, rng):
    batches = classes(rng, 3 * BATCH)
    gc.collect()
    known = len(residents._known)
    pair = prepared(modules(), batches, given={"momentum": 0.9})
    steps(pair[1], batches)
    mx.nd.waitall()
    before = staged.counters()
    steps(pair[1], batches, 1)
    mx.nd.waitall()
    after = staged.counters()
    moved = sum(after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
    assert moved <= 4 * BATCH * (2 * 5 + 2 + 2 * 3), moved
    assert len(residents._known) > known
    del pair
    mx.nd.waitall()
    gc.collect()
    assert len(residents._known) == known


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
def test_module_in_every_other_way(staged, rng, frozen):
    batches = classes(rng, 4 * BATCH)
    more = {"grad_req": "add", "inputs_need_grad": True}
    pair = prepared(modules(frozen, fixed_param_names=["fc2_bias"]), batches, "adam", {"learning_rate": 0.05}, **more)
    odd = mx.io.DataBatch([mx.nd.array(random(rng, 7, 5))], [mx.nd.array(rng.integers(0, 3, 7))])
    given = {name: mx.nd.array(random(rng, *array.shape)) for name, array in pair[0].get_params()[0].items()}
    for number in range(4):
        found = []
        for module in pair:
            batches.reset()
            for batch in (next(batches), odd, next(batches)):  # other shapes, to and fro
                module.forward_backward(batch)
                module.update()
            finish(module)
            found.append([module.get_input_grads()[0].asnumpy(), module.get_outputs()[0].asnumpy()])
            if number == 1:
                for (gradient,) in module._exec_group.grad_arrays:
                    if gradient is not None:
                        gradient[:] = 0
            if number == 2:
                module.set_params(given, module.get_params()[1])
            found[-1] += [module.predict(batches).asnumpy(), [v for _, v in module.score(batches, "ce")]]
            module._optimizer.set_learning_rate(0.02)
        for a, b in zip(*found):
            np.testing.assert_allclose(b, a, 1e-3, 1e-5)
        same(pair, 1e-3, 1e-5)
    assert pair[1].host == {} and len(places_of(pair[1])) == 7


def test_statistics_of_fixed_layers_stay_in_modules(staged, rng):
    batches = classes(rng, 2 * BATCH)
    split = ops.swap_symbol(symbol(), regions=True, select=lambda node: node.name != "act")[0]
    fixed = {"fixed_param_names": ["fc1_weight", "bn_gamma", "bn_beta"]}
    pair = prepared((mx.mod.Module(symbol(), **fixed), ops.resident(mx.mod.Module(split, **fixed))), batches)
    for module in pair:
        steps(module, batches)
    same(pair)
    assert pair[1].host == {} and not pair[1].get_params()[1]["bn_moving_mean"].asnumpy().any()


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "adamw"])
def test_module_in_float16(staged, rng, optimizer):
    batches = classes(rng, 4 * BATCH, dtype="float16")
    given = {"learning_rate": 0.05, "wd": 0.01, "clip_gradient": 0.5, "multi_precision": True}
    pair = mx.mod.Module(swapped()), ops.resident(mx.mod.Module(swapped()))  # MXNet has no such FullyConnected
    prepared(pair, batches, "ocl_adamw" if optimizer == "adamw" else optimizer, given)
    for module in pair:
        steps(module, batches)
    assert set(places_of(pair[1])) == {"device"} and pair[1].host == {}
    same(pair, 5e-3, 5e-3)
    assert {array.dtype for array in pair[1]._exec_group.execs[0].arg_arrays} == {np.float16, np.float32}


def test_what_modules_leave_on_the_host(staged, rng):
    batches = classes(rng, 2 * BATCH)
    with pytest.raises(ProblemError, match="got a PythonLossModule, expected a Module"):
        ops.resident(mx.mod.PythonLossModule())

    def left(module):
        (reason,) = set(module.host.values())
        assert places_of(module) == []
        return reason

    pair = prepared(modules(), batches, "signum")
    assert left(pair[1]) == "the optimizer Signum is not served on devices"
    half = prepared(modules(), classes(rng, BATCH, dtype="float16"), "sgd")
    assert left(half[1]) == "it is float16, and the optimizer has no multi_precision"
    stored = ops.resident(mx.mod.Module(swapped()))
    stored.bind(batches.provide_data, batches.provide_label)
    assert stored.host == {}
    stored.init_params()
    stored.init_optimizer(mx.kv.create("local"))
    assert left(stored) == "a key-value store has them"
    # later
    for use in ("monitor", "module"):
        pair = prepared(modules(), batches, "sgd", {"momentum": 0.9})
        for module in pair:
            steps(module, batches)
        pair[1].forward(next(iter(batches)) if batches.reset() is None else None)
        if use == "monitor":
            pair[1].install_monitor(mx.mon.Monitor(1))
        else:
            second = mx.mod.Module(swapped())
            second.bind(batches.provide_data, batches.provide_label, shared_module=pair[1])
        assert left(pair[1]).startswith("something else uses the executor")
        with pytest.raises(ops.OperatorError, match="expected a forward in between"):
            pair[1].backward()
        pair[0].forward(next(iter(batches)) if batches.reset() is None else None)
        for module in pair:
            steps(module, batches)
        same(pair)


def test_a_module_on_a_processor_and_one_that_works_already(context, staged, rng, monkeypatch):
    batches = classes(rng, 3 * BATCH)
    plain, late = prepared((mx.mod.Module(symbol()), mx.mod.Module(swapped())), batches)
    for module in (plain, late):
        steps(module, batches)
    ops.resident(late)
    for module in (plain, late):
        steps(module, batches)
    same((plain, late))
    assert late.host == {} and len(places_of(late)) == 7
    if context.device.host_access != "staged":
        monkeypatch.undo()
        module = ops.resident(mx.mod.Module(swapped()))
        prepared((mx.mod.Module(symbol()), module), batches)
        assert set(module.host.values()) == {"the device uses the host's memory"}
        assert type(module._optimizer) is ops.OclSGD


KEYS = 3, 2


def unrolled(key: int, **more) -> tuple:
    """Return the symbol of a bucket: a recurrent layer, unrolled; with names of inputs."""
    data, hidden = mx.sym.var("data"), None
    weight, bias, own = mx.sym.var("i_weight"), mx.sym.var("i_bias"), mx.sym.var("h_weight")
    for time in range(key):
        step = mx.sym.squeeze(mx.sym.slice_axis(data, axis=1, begin=time, end=time + 1), axis=1)
        step = mx.sym.FullyConnected(step, weight, bias, num_hidden=6, name=f"i{time}")
        hidden = mx.sym.zeros_like(step) if hidden is None else hidden
        old = mx.sym.FullyConnected(hidden, own, no_bias=True, num_hidden=6, name=f"h{time}")
        hidden = mx.sym.Activation(step + old, act_type="tanh")
    x = mx.sym.BatchNorm(hidden, fix_gamma=False, name="bn")
    found = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc"), name="softmax")
    return ops.swap_symbol(found, regions=True, **more)[0] if more else found, ["data"], ["softmax_label"]


def sequences(rng, count):
    """Return batches of buckets in turn."""
    for number in range(count):
        key = KEYS[number * 2 // 3 % 2]
        data, label = random(rng, BATCH, key, 5), rng.integers(0, 3, BATCH).astype("float32")
        names = {"provide_data": [("data", data.shape)], "provide_label": [("softmax_label", label.shape)]}
        yield mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)], bucket_key=key, **names)


def bucketed(rng, swapped_of, late=False):
    """Return bound modules with buckets: one of MXNet's operators, and a swapped one with residents."""
    first, pair = next(sequences(rng, 1)), []
    for make in (unrolled, swapped_of):
        module = mx.mod.BucketingModule(make, KEYS[0], context=mx.cpu())
        pair.append(ops.resident(module) if pair and not late else module)
        module.bind(first.provide_data, first.provide_label)
        mx.random.seed(3)
        module.init_params(mx.init.Uniform(0.5), *(pair[0].get_params() if len(pair) == 2 else ()))
        module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    return pair


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_buckets_share_what_is_on_the_device(staged, rng, late, tmp_path):
    pair = bucketed(rng, lambda key: unrolled(key, select=None), late)
    data = list(sequences(rng, 6))
    for number, module in enumerate(pair):
        for batch in data[:3]:
            module.forward_backward(batch)
            module.update()
        if late and number:
            ops.resident(module)
    for batch in data:
        for module in pair:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    assert pair[1].host == {} and all(len(places_of(bucket)) == 9 for bucket in pair[1]._buckets.values())
    before = staged.counters()
    pair[1].forward_backward(data[0])
    pair[1].update()
    mx.nd.waitall()
    after = staged.counters()
    moved = sum(after[name] - before[name] for name in ("bytes_to_device", "bytes_to_host"))
    assert moved <= 4 * BATCH * (2 * 5 * KEYS[0] + 2 + 2 * 3), moved
    pair[0].forward_backward(data[0])
    pair[0].update()
    mx.nd.waitall()
    same(pair)
    # inference of another bucket, files, other parameters, and new executors
    for module in pair:
        module.forward(data[3], is_train=False)
    np.testing.assert_allclose(*(module.get_outputs()[0].asnumpy() for module in pair), 1e-4, 1e-5)
    pair[1].save_params(str(tmp_path / "params"))
    pair[0].load_params(str(tmp_path / "params"))
    pair[1].set_params(*pair[0].get_params())
    for module in pair:
        module.bind(data[0].provide_data, data[0].provide_label, force_rebind=True)
        module.init_optimizer(optimizer="nag", force_init=True)
        for batch in data:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert pair[1].host == {}
    for module in pair:
        module.install_monitor(mx.mon.Monitor(100))
        for batch in data:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert set(map(bool, map(places_of, pair[1]._buckets.values()))) == {False}
    assert len(set(pair[1].host.values())) == 1 and "monitor" in pair[1].host["fc_weight"]


def test_a_bucket_that_reads_a_parameter_outside_of_regions(staged, rng):
    def of(key):
        return unrolled(key, select=lambda node: key == KEYS[0] or node.name != "fc")

    pair = bucketed(rng, of)
    assert pair[1].host == {}
    for batch in sequences(rng, 6):
        for module in pair:
            module.forward_backward(batch)
            module.update()
    mx.nd.waitall()
    same(pair)
    assert set(pair[1].host.values()) == {"another symbol reads fc_bias outside of regions"}


def test_modules_one_after_the_other(staged, rng):
    batches, pair = classes(rng, 4 * BATCH), []
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
    first = mx.sym.Activation(x, act_type="tanh", name="act")
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="fc2"), name="softmax")
    for number in range(2):
        chain = mx.mod.SequentialModule()
        for place, symbol in enumerate((first, second)):
            symbol = ops.swap_symbol(symbol, regions=True)[0] if number else symbol
            chain = ops.resident(chain) if number and place else chain  # one is in it, one comes
            names = {"data_names": ["x"]} if place else {"label_names": None}
            chain.add(mx.mod.Module(symbol, **names), take_labels=bool(place), auto_wiring=True)
        pair.append(chain)
    prepared(pair, batches, given={"learning_rate": 0.1, "momentum": 0.9})
    for chain in pair:
        for _ in range(2):
            batches.reset()
            for batch in batches:
                chain.forward_backward(batch)
                chain.update()
    same(pair)
    assert pair[1].host == {} and [len(places_of(module)) for module in pair[1]._modules] == [2, 2]
