"""Batch norms that add what a sum after them adds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder
from clgraft.core.graph.passes import join_residuals
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.planning.halves import name_of
from clgraft.core.session.context import Context
from tests.core.conv_checks import an_h200
from tests.core.graphs import EPS, sample

ROWS, CHANNELS = 90, 24
SHAPE = f"[{ROWS},{CHANNELS}]"
SUM = "y0 = x0 + x1"


class Block:
    """A graph of norms and sums."""

    def __init__(self) -> None:
        self.on = GraphBuilder()
        self.x, self.z = (self.on.input(name, (ROWS, CHANNELS)) for name in "xz")

    def norm(self, value: str) -> tuple[str, str, str]:
        gamma, beta = (self.on.input(f"{value}.{word}", (CHANNELS,)) for word in ("gamma", "beta"))
        line = f"batchnorm forward_training n{ROWS} c{CHANNELS} s1"
        return self.on.add(line, value, gamma, beta, scalars=EPS)

    def sum(self, first: str, second: str, text: str = SUM, scalars: dict | None = None) -> str:
        words = f" scalars{{{','.join(scalars)}}}" if scalars else ""
        return self.on.add(f"pointwise x0{SHAPE} x1{SHAPE}{words} : {text};", first, second, scalars=scalars or {})[0]


def norms_of(graph: Graph) -> list[BatchNormProblem]:
    return [node.problem for node in graph.nodes if isinstance(node.problem, BatchNormProblem)]


@pytest.mark.parametrize(
    ("text", "scalars", "activation"),
    [
        (SUM, {}, ""),
        ("real joined = x0 + x1; y0 = joined > 0 ? joined : 0", {}, "relu"),
        ("real a = x0; real b = x1; real joined = a + b; real c = joined; y0 = c > 0 ? c : 0", {}, "relu"),
        ("real joined = x0 + x1; y0 = joined > 0 ? joined : s0 * joined", {"s0": 0.125}, "leaky_relu"),
        ("real joined = x0 + x1; y0 = joined < b ? b : joined > a ? a : joined", {"b": -0.5, "a": 0.5}, "clip"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_sums_become_parts_of_norms(text: str, scalars: dict, activation: str, turned: bool, rng) -> None:
    block = Block()
    y, mean, _ = block.norm(block.x)
    first, second = (block.z, y) if turned else (y, block.z)
    graph = block.on.graph(block.sum(first, second, text, scalars), mean)
    joined = join_residuals(graph, lambda problem: True)
    (problem,) = norms_of(joined)
    assert len(joined.nodes) == 1 and problem.residual and problem.activation == activation
    arrays = sample(graph, rng)
    expected, found = evaluate(graph, arrays), evaluate(joined, arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name].ravel(), expected[name].ravel(), rtol=1e-12, atol=1e-12)


def test_shortcuts_with_norms_join_the_later_one(rng) -> None:
    """Its other value is there by then; the norm in front of it stays as it is."""
    block = Block()
    first, *_ = block.norm(block.x)
    second, *_ = block.norm(block.z)
    graph = block.on.graph(block.sum(first, second))
    joined = join_residuals(graph, lambda problem: True)
    assert [problem.residual for problem in norms_of(joined)] == [False, True]
    assert all(problem.residual is False for problem in norms_of(join_residuals(graph, lambda problem: False)))


def apart(kind: str) -> Graph:
    """Return a graph whose sum cannot be a part of a norm."""
    block = Block()
    y, mean, _ = block.norm(block.x)
    if kind == "the norm is read twice":
        return block.on.graph(block.sum(y, block.z), block.sum(y, block.x, "y0 = x0 * x1"))
    if kind == "the norm is an output":
        return block.on.graph(block.sum(y, block.z), y)
    if kind == "the other value comes later":
        (late,) = block.on.add(f"pointwise x0[{CHANNELS}] x1{SHAPE} : y0 = x0 + x1;", mean, block.z)
        return block.on.graph(block.sum(y, late))
    if kind == "both are the norm":
        return block.on.graph(block.sum(y, y))
    if kind == "another function":
        return block.on.graph(block.sum(y, block.z, "y0 = tanh(x0 + x1)"))
    if kind == "a state changes":
        state = block.on.state("s", (ROWS, CHANNELS))
        block.on.add(f"update x0{SHAPE} x1{SHAPE} : y0 = x1 + x0;", block.z, state)
        return block.on.graph(block.sum(y, state))
    (vector,) = (block.on.input("v", (CHANNELS,)),)
    return block.on.graph(block.on.add(f"pointwise x0{SHAPE} x1[{CHANNELS}] : y0 = x0 + x1;", y, vector)[0])


@pytest.mark.parametrize(
    "kind",
    [
        "the norm is read twice",
        "the norm is an output",
        "the other value comes later",
        "both are the norm",
        "another function",
        "a state changes",
        "a vector",
    ],
)
def test_what_stays_apart(kind: str) -> None:
    joined = join_residuals(apart(kind), lambda problem: True)
    assert not any(problem.residual for problem in norms_of(joined))


def blocks() -> Graph:
    """Return forward and backward of two blocks with shortcuts."""
    on = GraphBuilder()
    x, weights = on.input("x", (4, 64, 10, 9)), []

    def normed(value: str) -> str:
        weights.append(on.input(f"w{len(weights)}", (64, 64, 1, 1)))
        (result,) = on.add("conv forward n4 ic64 ih10 iw9 oc64 kh1 kw1", value, weights[-1])
        vectors = [on.input(f"{word}{len(weights)}", (64,)) for word in ("gamma", "beta")]
        return on.add("batchnorm forward_training n4 c64 s90", result, *vectors, scalars=EPS)[0]

    (y,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", normed(x))
    for _ in range(2):
        (total,) = on.add("pointwise x0[4,64,90] x1[4,64,90] : y0 = x0 + x1", normed(y), y)
        (y,) = on.add("pointwise x0[4,64,90] : y0 = x0 > 0 ? x0 : 0", total)
    return on.graph(y).gradients(weights)


def test_a_training_step_on_a_gpu(rng) -> None:
    """Forward and backward of blocks with shortcuts in channels last, as exact as with the pass switched off.

    Gradients are off where 16 bits carry a sum across a kink.
    """
    graph, context = blocks(), Context.on(None)
    names = (name_of("wgmma", "float16"),)
    context.device = replace(an_h200(), halves=names, is_cpu=False, is_gpu=True, matrix_units=())
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    errors: dict[str | None, dict[str, float]] = {None: {}, "-residuals": {}}
    for (passes, found), count in zip(errors.items(), (2, 0)):
        compiled = context.compile(graph, passes, precision="float16")
        texts = [text for text, _ in compiled.report().algorithms]
        assert sum(text.endswith("residual") for text in texts) == count
        for name, array in compiled.run(arrays).items():
            away = np.linalg.norm(array.ravel() - expected[name].ravel()) / np.linalg.norm(expected[name])
            assert away < (0.03 if name.startswith("d.") else 0.001), (passes, name)
            found[name] = away
    assert errors[None][graph.outputs[0]] <= errors["-residuals"][graph.outputs[0]]  # one rounding less


@pytest.mark.skipif(not core.context().device.is_cpu, reason="for CPU devices")
def test_a_training_step_on_a_cpu(rng) -> None:
    """One launch computes a norm, the sum and the activation, and a block's values keep their float32 digits."""
    graph, context = blocks(), Context.on(None)
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    launches = {}
    for passes, count in ((None, 2), ("-residuals", 0)):
        compiled = context.compile(graph, passes)
        report = compiled.report()
        served = [algorithm for text, algorithm in report.algorithms if text.endswith("residual")]
        assert served == ["channels_cpu"] * count
        launches[count] = report.launches
        for name, array in compiled.run(arrays).items():
            away = np.linalg.norm(array.ravel() - expected[name].ravel()) / np.linalg.norm(expected[name])
            assert away < 2e-4, (passes, name)
    assert launches[2] == launches[0] - 2


def test_norms_without_such_a_kernel_stay(context: Context, rng: np.random.Generator) -> None:
    """Rows of one pixel on CPUs: `rows_cpu` adds nothing, and no other implementation takes its place."""
    if not context.device.is_cpu:
        pytest.skip("for CPU devices")
    block = Block()
    y, *_ = block.norm(block.x)
    compiled = context.compile(block.on.graph(block.sum(y, block.z)))
    assert not any("residual" in text for text, _ in compiled.report().algorithms)
