"""Operators of more arrays than a 64-bit mask has bits: Concat, stack, split and add_n, written by hand and swapped."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from clgraft import core
from clgraft.mxnet_ops import swap_symbol
from tests.mxnet_ops.operator_checks import compare, evaluate, random

COUNTS = (62, 63, 64, 65, 300)


def names_of(count: int) -> list:
    return [f"x{i}" for i in range(count)]


def joined(operator, count, **keys):
    """A native operator of many inputs, which are real numbers of known shape."""
    return operator(*[mx.sym.sin(mx.sym.var(name, shape=(2, 3), dtype="float32")) for name in names_of(count)], **keys)


NATIVE = {
    "concat": lambda count: joined(mx.sym.Concat, count, dim=1),
    "stack": lambda count: joined(mx.sym.stack, count, axis=0),
    "add_n": lambda count: joined(mx.sym.add_n, count),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NATIVE)
def test_many_inputs(name, count, rng):
    native = NATIVE[name](count)
    swapped, report = swap_symbol(native)
    assert not report.kept, report
    arrays = {key: random(rng, 2, 3) for key in names_of(count)}
    lone = {key: "write" if key == "x61" else "null" for key in names_of(count)}
    compare(swapped, native, arrays, rng, requests=["write", "add", lone])


@pytest.mark.parametrize("count", COUNTS)
def test_many_outputs(count, rng):
    native = mx.sym.Group(list(mx.sym.split(mx.sym.sin(mx.sym.var("x", dtype="float32")), num_outputs=count, axis=1)))
    swapped, report = swap_symbol(native)
    assert not report.kept, report
    compare(swapped, native, {"x": random(rng, 2, count, 3)}, rng, requests=["write", "add"])


@pytest.mark.parametrize("coefficients", [False, True])
def test_a_long_sum_is_that_of_its_terms(coefficients, rng):
    count = 100
    arrays = {name: rng.integers(-9, 9, (3, 4)).astype("float32") for name in names_of(count)}
    factors = tuple(float(i % 5) for i in range(count))
    keys = {"coefficients": factors} if coefficients else {"broadcast": False}
    symbol = mx.sym.Custom(
        *[mx.sym.var(n) for n in arrays], op_type="ocl_eltwise", operation="add", num_args=count, **keys
    )
    head = np.ones((3, 4), "float32")
    got = evaluate(symbol, arrays, [head])
    expected = sum((f if coefficients else 1) * a for f, a in zip(factors, arrays.values()))
    np.testing.assert_array_equal(got.outputs[0], expected)
    for factor, name in zip(factors, arrays):
        np.testing.assert_array_equal(got.gradients[name], head * (factor if coefficients else 1), err_msg=name)


def test_each_of_many_outputs_can_be_skipped(rng):
    """A plan of 101 buffers leaves out exactly what is not wanted."""
    problem = core.ConcatProblem("backward", 2, (1,) * 100, 3)
    plan, x = core.context().plan(problem), random(rng, 2, 100, 3)
    names = [argument.name for argument in plan.arguments]
    outputs = {name: np.full((2, 1, 3), np.nan, "float32") for name in names[1:]}
    wanted = names[1:][:2] + names[1:][62:66] + names[1:][-1:]
    plan.run(**{names[0]: x}, **{name: outputs[name] if name in wanted else None for name in names[1:]})
    for place, (name, array) in enumerate(outputs.items()):
        if name in wanted:
            np.testing.assert_array_equal(array[:, 0], x[:, place], err_msg=name)
        else:
            assert np.isnan(array).all(), name
