"""Gradients of biases in front of training batch norms, which the norms' gradients write."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, parse_graph
from clgraft.core.graph.passes import join_biases, optimise
from clgraft.core.graph.reference import evaluate
from clgraft.core.session.context import Context
from tests.core.graphs import sample
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.core.test_batchnorm import EPS, SCALARS, check, parse, random_arrays, reference, with_activation

CPU, GPU = MACHINES[0], MACHINES[1]
WAY = "backward_training"
HEAD = "input x[3,2,5,7] w[6,2,3,3] b[6] gamma[6] beta[6]\n"
CONV = "a = x w b | conv forward n3 ic2 ih5 iw7 oc6 kh3 kw3 ph1 pw1 b1\n"
NORM = "y _ _ = a gamma beta {eps=0.001} | batchnorm forward_training n3 c6 s35\n"
ASKED = ("x", "w", "b", "gamma", "beta")


def net(middle: str = NORM, end: str = "output y", layer: str = CONV) -> Graph:
    return parse_graph(f"{HEAD}{layer}{middle}{end}").gradients(ASKED)


def biases(graph: Graph) -> int:
    return sum("backward_bias" in str(node.problem) for node in graph.nodes)


RELU = "z = y | pointwise x0[3,6,5,7] : y0 = x0 > 0 ? x0 : 0\n"
CHANNELS_LAST = (
    "a = x w b | conv forward n3 ic2 ih5 iw7 oc6 kh3 kw3 ph1 pw1 b1 layout=nhwc\n",
    "y _ _ = a gamma beta {eps=0.001} | batchnorm forward_training n105 c6 s1\n",
)
DENSE = ("a = x w b | dense forward n15 i14 o6 b1\n", CHANNELS_LAST[1].replace("n105", "n15"))


@pytest.mark.parametrize(
    "graph",
    [
        net(),
        net(NORM + RELU, "output z"),
        net(CHANNELS_LAST[1], layer=CHANNELS_LAST[0]),
        parse_graph(f"{HEAD.replace('w[6,2,3,3]', 'w[6,14]')}{''.join(DENSE)}output y").gradients(ASKED),
    ],
    ids=["conv", "relu", "nhwc", "dense"],
)
def test_norms_write_gradients_of_biases(graph: Graph, context: Context, rng: np.random.Generator) -> None:
    joined = optimise(graph, "-all,norms,biases")
    before = optimise(graph, "-all,norms")
    assert (biases(before), biases(joined)) == (1, 0) and len(joined.nodes) == len(before.nodes) - 1
    arrays = sample(graph, rng)
    exact, found = evaluate(graph, arrays), evaluate(joined, arrays)
    compiled = context.compile(graph)
    assert dict(compiled.report().passes)["biases"] == 1
    computed = compiled.run(arrays)
    for name in graph.outputs:
        scale = np.abs(exact[name]).max() if name != "d.b" else np.abs(exact["d.w"]).max()
        assert np.allclose(found[name].ravel(), exact[name].ravel(), rtol=1e-9, atol=1e-12 * scale), name
        assert np.allclose(computed[name].ravel(), exact[name].ravel(), rtol=1e-4, atol=3e-5 * scale), name


@pytest.mark.parametrize(
    "graph",
    [
        net("y = a gamma beta gamma gamma {eps=0.001} | batchnorm forward_inference n3 c6 s35\n"),
        net(NORM, "z = y a | pointwise x0[630] x1[630] : y0 = x0 * x1\noutput z"),  # another gradient is added
        net(NORM.replace("n3 c6 s35", "n105 c6 s1")),  # other channels of the same memory
        net(RELU.replace("y |", "a |").replace("z =", "y =")),
    ],
    ids=["inference", "added", "turned", "none"],
)
def test_other_sums_stay(graph: Graph) -> None:
    assert join_biases(graph) is graph and biases(graph) == 1


def test_a_second_sum_stays() -> None:
    line = "conv backward_bias n3 ic2 ih5 iw7 oc6 kh3 kw3 ph1 pw1"
    graph = parse_graph(
        "input x[3,6,5,7] dy[3,6,5,7] gamma[6] mean[6] var[6]\n"
        "dx _ _ = x dy gamma mean var {eps=0.001} | batchnorm backward_training n3 c6 s35\n"
        f"first = dx | {line}\nsecond = dx | {line}\noutput dx first second"
    )
    assert biases(join_biases(graph)) == 1


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize(
    ("line", "algorithm", "machine"),
    [
        ("n8 c21 s49", "channels_cpu", CPU),
        ("f64 n4 c3 s35", "channels_cpu", CPU),
        ("f16 n4 c6 s37", "channels_cpu", CPU),
        ("n90 c24 s1", "rows_cpu", CPU),
        ("n33 c5 s9", "generated", CPU),
        ("bf16 n4 c6 s37", "generated", GPU),
        ("n5 c3 s49", "channels", GPU),
        ("n33 c3 s2001", "channels", GPU),
        ("n1601 c20 s1", "rows_gpu", GPU),
        ("n601 c20 s1", "rows_gpu", GPU),
    ],
)
def test_every_implementation_writes_them(line: str, algorithm: str, machine: str, activation: str) -> None:
    """All other results keep their bits. A channel whose sums are not finite has no gradient of 0."""
    if activation:
        plain, arrays = with_activation(f"batchnorm {line}", WAY, activation)
    else:
        plain = parse(f"batchnorm {line}", WAY)
        arrays = random_arrays(plain, 3.0)
    problem = replace(plain, bias=True)
    assert core.parse(str(problem)) == problem
    results: list[dict[str, np.ndarray]] = []
    arrays["dy"] = arrays["dy"].copy()
    with planning_for(machine) as context:
        for fault in (0, np.nan, np.inf):
            arrays["dy"][-1, 1, -1] += fault
            for each in (plain, problem):
                out = {a.name: np.full(a.shape, np.nan, a.dtype) for a in each.arguments() if a.role == "out"}
                plan = context.plan(each, algorithm=algorithm)
                plan.run(scalars={"eps": EPS, **SCALARS.get(activation, {})}, **arrays, **out)
                results.append(out)
            if not fault:
                check(out, reference(problem, arrays), problem.dtype, 300)
    for i in (0, 2, 4):
        without, found = results[i : i + 2]
        assert all(without[name].tobytes() == found[name].tobytes() for name in without)
        expected = np.zeros(problem.channels)
        expected[1] = np.nan if i else 0
        np.testing.assert_array_equal(found["dbias"].astype(float), expected)


def test_sums_of_gradients_are_zero(rng: np.random.Generator) -> None:
    """By the reference, whose dx is the gradient through the statistics."""
    problem = parse("batchnorm f64 n9 c33 s9", WAY)
    found = reference(problem, random_arrays(problem, 3.0))
    assert np.abs(found["dx"].sum((0, 2))).max() < 1e-12 * np.abs(found["dx"]).sum((0, 2)).min()


@pytest.mark.parametrize("direction", ["forward_training", "forward_inference", "backward_inference"])
def test_other_directions_have_none(direction: str) -> None:
    with pytest.raises(core.ProblemError, match="backward_training"):
        parse("batchnorm n3 c7 s1 bias", direction)
