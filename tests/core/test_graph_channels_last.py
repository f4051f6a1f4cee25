"""Graphs of layers in channels last: what each pass does with them, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph.passes import fold_batch_norms, fuse_epilogues
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.fused import FusedProblem
from tests.core.graphs import EPS, sample

SIZES = "n2 ic6 ih9 iw11 oc9 kh3 kw3 ph1 pw1"  # as many channels as rows
HEAD = "input x[2,9,11,6] w[9,3,3,6] c[9] r[2,9,11,9]\ny = x w | conv forward " + SIZES + " layout=nhwc\n"
NORM = "input x[1188] w[486] g.gamma[9] b[9] m[9] v.var[9]\n"


def expect_same(context: core.Context, graph: Graph, changed: Graph, rng: np.random.Generator) -> None:
    """Expect a changed graph, and what a device makes of it, to compute what the graph computes."""
    arrays = sample(graph, rng)
    one, two = evaluate(graph, arrays), evaluate(changed, arrays)
    found = context.compile(changed, "-all").run(arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(two[name].ravel(), one[name].ravel(), rtol=1e-9, atol=1e-9)
        assert np.abs(found[name].ravel() - one[name].ravel()).max() <= 3e-6 * np.abs(one[name]).max()


@pytest.mark.parametrize(
    "layout, norm, folds",
    [
        ("nhwc", "n198 c9 s1", True),
        ("nhwc", "n2 c9 s99", False),  # the same elements as if the rows were the channels
        ("nchw", "n2 c9 s99", True),
        ("nchw", "n198 c9 s1", False),
    ],
)
def test_a_norm_is_folded_only_where_its_channels_are_the_layers(context, rng, layout, norm, folds):
    graph = parse_graph(
        f"{NORM}y = x w | conv forward {SIZES} layout={layout}\n"
        f"z = y g.gamma b m v.var {{eps=1e-3}} | batchnorm forward_inference {norm}\noutput z"
    )
    folded = fold_batch_norms(graph)
    assert folds != any(isinstance(node.problem, BatchNormProblem) for node in folded.nodes)
    expect_same(context, graph, folded, rng)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("z = y | pointwise x0[2,9,11,9] : y0 = x0 > 0 ? x0 : 0", "with : y0 = x0 > 0 ? x0 : 0"),
        (
            "z = c y r | pointwise x0[9] x1[198,9] x2[198,9] : y0 = x0 * x1 + x2",
            "with channel whole : y0 = x1 * x0 + x2",
        ),
        ("z = y c | pointwise x0[2,9,99] x1[9,1] : y0 = x0 + x1", ""),  # a vector over the rows
    ],
)
def test_an_epilogue_knows_where_the_channels_are(context, rng, line, expected):
    graph = parse_graph(f"{HEAD}{line}\noutput z")
    fused = fuse_epilogues(graph, lambda problem: True)
    texts = [str(node.problem) for node in fused.nodes if isinstance(node.problem, FusedProblem)]
    assert [text.partition(" with")[2] for text in texts] == ([expected[4:]] if expected else [])
    expect_same(context, graph, fused, rng)


def net(training: bool) -> tuple[Graph, list[str]]:
    """Return layers of all kinds in channels last with norms, a concatenation and a slice along the channels."""
    on = GraphBuilder()
    x, weights = on.input("x", (2, 9, 9, 3)), []

    def conv(value: str, sizes: str, shape: tuple[int, ...], word: str = "conv") -> str:
        weights.append(on.input(f"w{len(weights)}", shape))
        return on.add(f"{word} forward n2 {sizes} layout=nhwc", value, weights[-1])[0]

    def norm(value: str, rows: int, channels: int) -> str:
        name = f"n{value.replace('.', '_')}"
        read = [value, *(on.input(f"{name}.{word}", (channels,)) for word in ("gamma", "beta"))]
        if training:
            return on.add(f"batchnorm forward_training n{rows} c{channels} s1", *read, scalars=EPS)[0]
        read += [on.input(f"{name}.{word}", (channels,)) for word in ("mean", "var")]
        return on.add(f"batchnorm forward_inference n{rows} c{channels} s1", *read, scalars=EPS)[0]

    def relu(value: str, shape: str) -> str:
        return on.add(f"pointwise x0[{shape}] : y0 = x0 > 0 ? x0 : 0;", value)[0]

    a = relu(norm(conv(x, "ic3 ih9 iw9 oc9 kh3 kw3 ph1 pw1", (9, 3, 3, 3)), 162, 9), "2,9,9,9")
    b = conv(a, "g9 ic9 ih9 iw9 oc9 kh3 kw3 ph1 pw1", (9, 3, 3, 1))
    c = conv(a, "ic9 ih9 iw9 oc7 kh1 kw1", (7, 1, 1, 9))
    (d,) = on.add("concat forward outer[162] extents[9,7] inner[1]", b, c)
    (e,) = on.add("slice forward x[162,16] y[162,12] at[0,3]", relu(d, "162,16"))
    (p,) = on.add("pool forward max n2 c12 ih9 iw9 kh3 kw3 sh2 sw2 layout=nhwc", e)
    u = conv(p, "ic12 oc5 ih4 iw4 kh2 kw2 sh2 sw2", (12, 2, 2, 5), "deconv")
    return on.graph(norm(u, 128, 5)), weights


@pytest.mark.parametrize("training", [False, True])
def test_nets_compute_the_same_with_all_passes(context, rng, training):
    graph, weights = net(training)
    if training:
        graph = graph.gradients([*weights, "x"])
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)
    for passes in (None,) if training else (None, "-all"):
        found = context.compile(graph, passes).run(arrays)
        for name in graph.outputs:
            scale = np.abs(expected[name]).max()
            assert np.abs(found[name].ravel() - expected[name].ravel()).max() <= 2e-5 * scale, (passes, name)
    if not training:
        constants = {name: array for name, array in arrays.items() if name != "x"}
        once = context.compile(graph, "-fold", constants=constants).run({"x": arrays["x"]})
        every_time = context.compile(graph, "-fold").run(arrays)
        np.testing.assert_array_equal(once[graph.outputs[0]], every_time[graph.outputs[0]])
        (output,) = context.compile(graph, constants=constants).run({"x": arrays["x"]}).values()
        exact = expected[graph.outputs[0]]
        assert np.abs(output.ravel() - exact.ravel()).max() <= 2e-5 * np.abs(exact).max()
