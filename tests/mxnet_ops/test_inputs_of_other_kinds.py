"""Inputs that MXNet's own operators take: sparse arrays, slopes of data's shape, one-dimensional data."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from graft_checks import assert_close, evaluate, random

from clgraft.mxnet_ops import swap_symbol


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_sparse_arrays_are_made_dense(stype, rng):
    data = random(rng, 4, 5) * (rng.random((4, 5)) > 0.5)
    weight, bias, head = random(rng, 3, 5), random(rng, 3), random(rng, 4, 3)
    native = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3, name="f")
    swapped, report = swap_symbol(native)
    assert report.replaced
    results = []
    for symbol in (native, swapped):
        arrays = {"x": mx.nd.array(data).tostype(stype), "f_weight": mx.nd.array(weight), "f_bias": mx.nd.array(bias)}
        gradients = {name: mx.nd.zeros(arrays[name].shape) for name in ("f_weight", "f_bias")}
        executor = symbol.bind(mx.cpu(), arrays, args_grad=gradients)
        output = executor.forward(is_train=True)[0].asnumpy()
        executor.backward(mx.nd.array(head))
        results.append([output, *(gradients[name].asnumpy() for name in sorted(gradients))])
    for got, expected in zip(results[1], results[0]):
        assert_close(got, expected)


@pytest.mark.parametrize("shape", [(3, 4), (7,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_learned_slope_for_each_element(shape, dtype, rng):
    native = mx.sym.LeakyReLU(mx.sym.var("x"), gamma=mx.sym.var("gamma"), act_type="prelu", name="p")
    swapped, report = swap_symbol(native)
    assert report.replaced
    x, gamma, head = (random(rng, *shape, dtype=dtype) for _ in range(3))
    # MXNet computes it in single precision, and its gradient of gamma can be wrong: see docs/mxnet.md
    assert_close(*(evaluate(s, {"x": x, "gamma": gamma}).outputs[0] for s in (swapped, native)))
    got = evaluate(swapped, {"x": x, "gamma": gamma}, [head])
    assert_close(got.outputs[0], np.where(x > 0, x, gamma * x), dtype)
    assert_close(got.gradients["x"], np.where(x > 0, head, gamma * head), dtype)
    assert_close(got.gradients["gamma"], np.where(x > 0, 0, x * head), dtype)
