"""Chains of formulas: values and gradients as one program, compared with the derivative that needs no formulas."""

from __future__ import annotations

import numpy as np

from clgraft.core import PointwiseProblem
from clgraft.core.nn import activations, elementwise
from clgraft.core.operators.pointwise.chain import Outer, join
from clgraft.core.operators.pointwise.derivative import gradient_expression

SHAPE = (3, 37)
# leaky(sigmoid(x0) * x1 - x0), x0 read twice and the product once
PARTS = (
    activations.formula("sigmoid"),
    elementwise.formula("multiply"),
    elementwise.formula("subtract"),
    activations.formula("leaky_relu", (0.1,)),
)
SOURCES = ((Outer(0),), (0, Outer(1)), (1, Outer(0)), (2,))


def computed(context, text: str, arrays: list, outputs: int, scalars: dict) -> list:
    problem = PointwiseProblem((SHAPE,) * len(arrays), text, (), tuple(scalars), dtype="float64")
    found = [np.full(SHAPE, np.nan) for _ in range(outputs)]
    named = {**{f"x{i}": a for i, a in enumerate(arrays)}, **{f"y{i}": a for i, a in enumerate(found)}}
    context.plan(problem).run(scalars=scalars, **named)
    return found


def test_values_and_gradients_of_a_chain(context, rng):
    chain = join(PARTS, SOURCES, 2)
    assert list(chain.scalars.values()) == [0.1]
    x0, x1, dy = (rng.standard_normal(SHAPE) for _ in range(3))
    (got,) = computed(context, chain.expression, [x0, x1], 1, chain.scalars)
    inner = x1 / (1 + np.exp(-x0)) - x0
    np.testing.assert_allclose(got, np.where(inner > 0, inner, 0.1 * inner), rtol=1e-12)

    def gradients(text: str) -> list:
        words = {"dx0": "y0", "dx1": "y1", "dy0": "x2"}
        for word, name in words.items():
            text = text.replace(word, name)
        return computed(context, text, [x0, x1, dy], 2, chain.scalars)

    program = PointwiseProblem((SHAPE,) * 2, chain.expression, (), tuple(chain.scalars), dtype="float64").program
    stated, derived = gradients(chain.gradient), gradients(gradient_expression(program, 2, chain.scalars))
    for one, other in zip(stated, derived):
        assert np.abs(other).max() > 0
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_a_sum_of_many_terms_and_functions_without_a_formula():
    chain = join((elementwise.formula("add", 3),), ((Outer(0), Outer(1), Outer(0)),), 2)
    assert chain.expression == "y0 = x0 + x1 + x0;"
    assert chain.gradient == "real g0 = dy0; dx0 = (g0) + (g0); dx1 = (g0);"
    assert elementwise.formula("maximum", 3) is None
