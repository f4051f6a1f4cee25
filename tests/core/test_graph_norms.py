"""Batch norms that compute the activation after them, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft.core.graph import Graph, parse_graph
from clgraft.core.graph.passes import join_norms
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample

RELU = "y = n | pointwise x0[3,5,7] : y0 = x0 > 0 ? x0 : 0\n"
TRAINING = "n m v = x gamma beta {eps=0.001} | batchnorm forward_training n3 c5 s7\n"
INFERENCE = "n = x gamma beta mean var {eps=0.001} | batchnorm forward_inference n3 c5 s7\n"
HEAD = "input x[3,5,7] gamma[5] beta[5] mean[5] var[5]\n"
LAST = "z = y x | pointwise x0[105] x1[105] : y0 = x0 * x1\n"
LEAKY = "y = n {slope=0.3} | pointwise x0[105] scalars{slope} : y0 = x0 > 0 ? x0 : slope * x0\n"
CLIP = (
    "y = n {low=-0.25, high=0.5} | pointwise x0[105] scalars{low,high} : y0 = x0 < low ? low : x0 > high ? high : x0\n"
)


def kinds(graph: Graph) -> list[str]:
    return [str(node.problem) for node in graph.nodes if "batchnorm" in str(node.problem)]


@pytest.mark.parametrize("norm", [TRAINING, INFERENCE])
@pytest.mark.parametrize("following, name", [(RELU, "relu"), (LEAKY, "leaky_relu"), (CLIP, "clip")])
def test_norms_take_activations_and_their_gradients(context, rng, norm, following, name):
    graph = parse_graph(f"{HEAD}{norm}{following}{LAST}output z").gradients(["x", "gamma", "beta"])
    joined = join_norms(graph)
    assert len(joined.nodes) == len(graph.nodes) - 2
    assert [text.endswith(name) for text in kinds(joined)] == [True, True]
    arrays = sample(graph, rng)
    one, two = evaluate(graph, arrays), evaluate(joined, arrays)
    for passes in ("-all,norms", "", "-norms"):
        compiled = context.compile(graph, passes)
        found = compiled.run(arrays)
        for output in graph.outputs:
            scale = np.abs(one[output]).max()
            assert np.allclose(one[output].ravel(), two[output].ravel(), rtol=1e-9, atol=1e-9 * scale)
            assert np.abs(found[output].ravel() - one[output].ravel()).max() <= 2e-5 * scale, (passes, output)
    assert dict(context.compile(graph, "-all,norms").report().passes)["norms"] == 2


@pytest.mark.parametrize(
    "lines",
    [
        f"{TRAINING}{RELU}{LAST}output z n",
        f"{TRAINING}{RELU}z = y n | pointwise x0[105] x1[105] : y0 = x0 * x1\noutput z",
        f"{TRAINING}y = n | pointwise x0[105] : y0 = x0 > 1 ? x0 : 0\n{LAST}output z",
        f"{TRAINING}y = n | pointwise x0[105] y0=sum[0] : y0 = x0 > 0 ? x0 : 0\noutput y",
    ],
)
def test_other_readers_and_other_functions_keep_their_norm(lines):
    graph = parse_graph(HEAD + lines)
    assert join_norms(graph) == graph


def test_without_gradients_the_norm_alone_takes_the_activation():
    graph = parse_graph(f"{HEAD}{TRAINING}{RELU}{LAST}output z")
    (text,) = kinds(join_norms(graph))
    assert text == "batchnorm forward_training n3 c5 s7 relu"


def test_a_gradient_that_something_else_reads_keeps_the_norm(rng):
    """The gradient of the norm's value is an output: it has to be there."""
    graph = parse_graph(f"{HEAD}{TRAINING}{RELU}{LAST}output z").gradients(["x", "n"])
    joined = join_norms(graph)
    arrays = sample(graph, rng)
    one, two = evaluate(graph, arrays), evaluate(joined, arrays)
    for name in graph.outputs:
        assert np.allclose(one[name].ravel(), two[name].ravel(), rtol=1e-9, atol=1e-12)
