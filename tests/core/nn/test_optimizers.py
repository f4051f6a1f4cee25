"""Optimizers against the definitions of Caffe, in float64; other suites hold them to PyTorch and MXNet."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft.core.errors import ProblemError
from clgraft.core.graph import GraphBuilder
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import optimizers
from clgraft.core.nn.builder import Build
from clgraft.core.nn.optimizers import CONVENTIONS, KINDS, Optimizer
from tests.core.nn.optimizer_steps import GRADIENTS, RATES, WEIGHT, after, steps

DECAY, FACTORS = 0.1, (2.0, 0.5)


def caffes(kind: str, norm: str) -> np.ndarray:
    """Return the weight after all steps of a solver, as its sources say."""
    w, h, u = WEIGHT.copy(), np.zeros_like(WEIGHT), np.zeros_like(WEIGHT)
    for t, (g, lr) in enumerate(zip(GRADIENTS, RATES), 1):
        rate = lr * FACTORS[0]
        g = g + DECAY * FACTORS[1] * (w if norm == "L2" else np.sign(w))
        if kind == "sgd":
            h = 0.9 * h + rate * g
            w = w - h
        elif kind == "nag":
            before, h = h, 0.9 * h + rate * g
            w = w - (1.9 * h - 0.9 * before)
        elif kind == "adagrad":
            h = h + g * g
            w = w - rate * g / (np.sqrt(h) + 1e-8)
        elif kind == "rmsprop":
            h = 0.9 * h + (1 - 0.9) * g * g
            w = w - rate * g / (np.sqrt(h) + 1e-8)
        elif kind == "adadelta":
            h = 0.9 * h + (1 - 0.9) * g * g
            step = g * np.sqrt((u + 1e-8) / (h + 1e-8))
            u = 0.9 * u + (1 - 0.9) * step * step
            w = w - rate * step
        else:
            h, u = 0.9 * h + (1 - 0.9) * g, 0.999 * u + (1 - 0.999) * g * g
            w = w - rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * h / (np.sqrt(u) + 1e-8)
    return w


@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize("kind", ["sgd", "nag", "adagrad", "rmsprop", "adadelta", "adam"])
def test_caffes_solvers(kind, norm):
    own = {"sgd": {"momentum": 0.9}, "nag": {"momentum": 0.9}, "rmsprop": {"rho": 0.9}}.get(kind, {})
    found = after(Optimizer(kind, "caffe", {"weight_decay": DECAY, "norm": norm, **own}), FACTORS)
    np.testing.assert_allclose(found, caffes(kind, norm), rtol=1e-6, atol=1e-6)


def test_clipping_rescaling_and_a_bounded_norm():
    clipped = steps("sgd", "pytorch", clip_gradient=0.5, rescale_grad=0.7)
    expected = WEIGHT - sum(rate * np.clip(0.7 * g, -0.5, 0.5) for g, rate in zip(GRADIENTS, RATES))
    np.testing.assert_allclose(clipped, expected)
    build = Build(GraphBuilder())
    gradients = [build.input(f"g{i}", GRADIENTS[i].shape) for i in range(3)]
    factor = optimizers.norm_factor(build, gradients, 2.0)
    arrays = {f"g{i}": GRADIENTS[i] for i in range(3)}
    found = evaluate(build.graph.graph(factor.name), arrays)[factor.name]
    np.testing.assert_allclose(found, 2 / np.sqrt((GRADIENTS[:3] ** 2).sum()))
    small = {name: 1e-3 * array for name, array in arrays.items()}
    assert evaluate(build.graph.graph(factor.name), small)[factor.name] == 1


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_convention_builds_and_moves(kind, convention):
    moved = steps(kind, convention, weight_decay=0.01, clip_gradient=1.0)
    assert np.isfinite(moved).all() and (moved != WEIGHT).all()


def test_a_rate_with_adams_corrections():
    """Adam that corrects nothing moves by it as Adam does that corrects, with eps after the corrections."""
    adam = Optimizer("adam", "mxnet")
    for step in (1, 2, 50, 10000):
        found = adam.scalars(step, 0.3)
        expected = 0.3 * math.sqrt(found["correction2"]) / found["correction1"]
        assert math.isclose(optimizers.corrected_rate(0.3, 0.9, 0.999, step), expected, rel_tol=1e-9)


def test_words_and_numbers_that_do_not_fit():
    with pytest.raises(ProblemError, match=r"optimizer 'adm', expected one of .*'adam'"):
        Optimizer("adm")
    with pytest.raises(ProblemError, match="convention 'torch'"):
        Optimizer("sgd", "torch")
    with pytest.raises(ProblemError, match="option 'momentun'"):
        Optimizer("sgd", options={"momentun": 0.9})
    with pytest.raises(ProblemError, match="'much' for momentum"):
        Optimizer("sgd", options={"momentum": "much"})
