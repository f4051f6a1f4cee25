"""Batch norms that compute the activation after them, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, parse_graph
from clgraft.core.graph.passes import fold_batch_norms, join_norms, read_results
from clgraft.core.graph.reference import evaluate
from clgraft.core.nn import activations, elementwise, norms
from clgraft.core.nn.builder import Build, Passes
from clgraft.core.nn.element_functions import LEFT, find
from tests.core.graphs import sample

RELU = "y = n | pointwise x0[3,5,7] : y0 = x0 > 0 ? x0 : 0\n"
TRAINING = "n m v = x gamma beta {eps=0.001} | batchnorm forward_training n3 c5 s7\n"
INFERENCE = "n = x gamma beta mean var {eps=0.001} | batchnorm forward_inference n3 c5 s7\n"
FUSED = "fused conv forward n2 ic3 ih5 iw7 oc5 kh3 kw3 ph1 pw1 with channel channel : y0 = x0 * x1 + x2"
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
    "following, scalars", [("relu", ""), ("leaky_relu", ", slope=0.3"), ("clip", ", low=-1, high=2")]
)
def test_convolutions_take_norms_with_activations(context, rng, following, scalars):
    graph = parse_graph(
        "input x[2,3,5,7] w[5,3,3,3] gamma[5] beta[5] mean[5] var[5]\n"
        "a = x w | conv forward n2 ic3 ih5 iw7 oc5 kh3 kw3 ph1 pw1\n"
        f"y = a gamma beta mean var {{eps=0.001{scalars}}} | batchnorm forward_inference n2 c5 s35 {following}\n"
        "output y"
    )
    folded = fold_batch_norms(graph)
    assert not kinds(folded)
    arrays = sample(graph, rng)
    expected = evaluate(graph, arrays)["y"].ravel()
    assert np.allclose(evaluate(folded, arrays)["y"].ravel(), expected, rtol=1e-9, atol=1e-9)
    constants = {name: array for name, array in arrays.items() if name != "x"}
    for known in ({}, constants):
        compiled = context.compile(graph, constants=known)
        given = {name: array for name, array in arrays.items() if name not in known}
        found = compiled.run({**given, "y": np.full((2, 5, 35), np.nan, np.float32)})["y"].ravel()
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        problems = [problem for problem, _ in compiled.report().algorithms]
        assert not any("batchnorm" in problem for problem in problems)
        scaled = [problem for problem in problems if "with channel channel" in problem]
        assert len(scaled) == (not known and context.serves(core.parse(FUSED), "in_kernel"))


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


@pytest.mark.parametrize("text", ["x0 > 0 ? x0 : 0", "x0 > 0 ? (x0 < 0.75 ? x0 : 0.75) : 0"])
def test_gradients_of_rectifiers_read_results(context, rng, text):
    graph = parse_graph(
        "input x[3,5,7] r[3,5,7]\nt = x r | pointwise x0[105] x1[105] : y0 = x0 + x1\n"
        f"y = t | pointwise x0[105] : y0 = {text}\nz = y | pointwise x0[105] : y0 = tanh(x0)\noutput z"
    ).gradients(["x", "r"])
    changed = read_results(graph)
    assert len(graph.readers["t"]) == 2 and len(changed.readers["t"]) == 1
    arrays = sample(graph, rng)
    arrays["x"][0, 0, :3] = -arrays["r"][0, 0, :3]  # the kink
    arrays["x"][0, 1, :3] = np.float32(0.75) - arrays["r"][0, 1, :3]
    arrays["x"][1, 1, 1] = np.nan
    one, two = (context.compile(graph, passes).run(arrays) for passes in ("-all", "-all,masks"))
    for name in graph.outputs:
        assert np.array_equal(one[name], two[name], equal_nan=True)
    assert (
        context.compile(graph, "-all,masks,chains").report().nodes
        < context.compile(graph, "-all,chains").report().nodes
    )


@pytest.mark.parametrize("passes", ["masks", "masks,argmax"])
@pytest.mark.parametrize("text", ["x0 > 0 ? x0 : 0", "x0 > 0 ? (x0 < 0.75 ? x0 : 0.75) : 0"])
def test_gradients_of_rectifiers_come_before_those_of_max_pooling(context, rng, text, passes):
    """Where windows overlap, too; the mask has as many elements as there are maxima."""
    graph = parse_graph(
        f"input x[2,3,9,9]\ny = x | pointwise x0[2,3,9,9] : y0 = {text}\n"
        "m = y | pool forward max n2 c3 ih9 iw9 kh3 kw3 sh2 sw2\n"
        "z = m | pointwise x0[2,3,4,4] : y0 = tanh(x0)\noutput z"
    ).gradients(["x"])
    arrays = sample(graph, rng)
    arrays["x"][0, 0, :4] = 0
    arrays["x"][0, 1, :4] = np.float32(0.75)
    arrays["x"][1, 1, 2:5] = np.nan
    arrays["x"][1, 2, :5] -= 3
    one, two = (context.compile(graph, f"-all,{words}").run(arrays) for words in ("dead", passes))
    for name in graph.outputs:
        assert np.array_equal(one[name], two[name], equal_nan=True)
    masks = [node for node in read_results(graph).nodes if "> 0) ? " in str(node.problem)]
    assert [(node.problem.common_shape, node.reads[1]) for node in masks] == [((2, 3, 4, 4), "m")]


def test_other_gradients_keep_their_input():
    graph = parse_graph(f"{HEAD}{TRAINING}{LEAKY}{LAST}output z".replace("0.3", "-0.3")).gradients(["x"])
    assert read_results(graph) == graph
    assert read_results(parse_graph(f"{HEAD}{TRAINING}{LEAKY}{LAST}output z").gradients(["x"])) != graph


APART = [("relu", ()), ("leaky_relu", (0.3,)), ("clip", (-0.25, 0.5))]


def apart(name: str, scalars: tuple[float, ...], residual: bool = False) -> Passes:
    """Return the passes of two norms of a batch with an activation each, and with moving averages."""
    build = Build(training=True)
    x, y = build.input("x", (3, 5, 7)), None
    for i in range(2):
        gamma, beta = (build.input(f"n{i}.{word}", (5,)) for word in ("gamma", "beta"))
        moving = build.state(f"n{i}.mean", (5,)), build.state(f"n{i}.var", (5,))
        normed = norms.batch_norm(build, x if y is None else y, gamma, beta, eps=1e-3)
        with build.after_backward(x):
            norms.update_averages(build, x, normed, moving, **norms.shares(keep=0.9))
        read = build.pointwise("y0 = x0 + x1;", [normed.y, x])[0] if residual and i else normed.y
        y = activations.activated(build, read, name, scalars)
    return build.passes([y], ["x", *(f"n{i}.{word}" for i in range(2) for word in ("gamma", "beta"))])


def halves(passes: Passes) -> tuple[Graph, Graph, list[str]]:
    """Return a forward and a backward graph, and what the second one reads of the first."""
    backward = passes.graph(passes.backward, [name for name in passes.found.values() if name])
    made = {name for node in passes.forward for name in node.writes}
    kept = [value.name for value in backward.inputs if value.name in made]
    return passes.graph(passes.forward, dict.fromkeys([passes.outputs[0].name, *kept])), backward, kept


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name, scalars", APART)
def test_passes_that_run_apart_share_norms_with_activations(context, rng, name, scalars, residual):
    passes = apart(name, scalars, residual)
    joined = passes.joined(switches="")
    before, after = halves(passes), halves(joined)
    assert kinds(before[0]) != kinds(after[0]) and kinds(before[1]) != kinds(after[1])
    sizes = [sum(forward.values[name].size for name in kept) for forward, _, kept in (before, after)]
    assert sizes[1] < sizes[0] or name == "relu"  # its gradient reads results anyway
    arrays = {**sample(before[1], rng), **sample(before[0], rng)}
    (incoming,) = (value.name for value in passes.incoming.values())
    found = []
    for (forward, backward, kept), run in ((before, evaluate), (after, evaluate), (after, compiled_run(context))):
        first = run(forward, {value.name: arrays[value.name] for value in forward.inputs})
        given = {name: np.asarray(first[name]).astype(np.float32) for name in kept}
        given |= {value.name: arrays[value.name] for value in backward.inputs if value.name not in given}
        states = {value.name: arrays[value.name].copy() for value in backward.states}
        second = {**states, **run(backward, {**given, **states})}
        found.append([first[passes.outputs[0].name], *(second[name] for name in (*backward.outputs, *states))])
    assert incoming in given and len(found[0]) == 10
    for exact, *others in zip(*found):
        for other in others:
            assert np.abs(other.ravel() - exact.ravel()).max() <= 2e-5 * np.abs(exact).max()


def compiled_run(context):
    """Return a function that runs a graph on the device, as `evaluate` does in float64."""
    return lambda graph, arrays: context.compile(graph).run(arrays)


def test_joined_passes_keep_their_order_and_their_last_nodes():
    passes = apart("relu", ())
    joined = passes.joined(switches="")
    assert passes.joined(switches="-norms,-masks") == passes
    assert (len(joined.forward), len(joined.backward)) == (len(passes.forward) - 2, len(passes.backward) - 2)
    assert joined.backward[-2:] == passes.backward[-2:] and len(joined.late) == 2
    assert not {name for node in joined.forward for name in node.reads} & set(joined.found.values())


def test_an_output_in_front_of_an_activation_stays(rng):
    passes = apart("relu", ())
    first = next(node for node in passes.forward if node.problem.kind == "batchnorm")
    joined = passes.joined([first.named("y")], switches="")
    assert len(joined.forward) == len(passes.forward) - 1
    assert first in joined.forward


def scaled_norm(
    shape: tuple[int, ...] = (3, 5, 7), axis: int = 1, bias: bool = True, gamma: float = 1.0, twice: bool = False
) -> tuple[Graph, dict[str, str]]:
    """Return both passes of a norm as Caffe has it, and the gradients' names: a scale is a layer of its own."""
    build = Build(training=True)
    x = build.input("x", shape)
    y = norms.batch_norm(build, x, build.filled((shape[1],), gamma), None, eps=1e-3).y
    names = ["g", "b"][: 1 + bias]
    vectors = [build.input(name, (shape[axis],)) for name in names]
    y_scaled = elementwise.scaled(build, y, vectors[0], vectors[1] if bias else None, axis)
    z = activations.applied(build, y_scaled, find("leaky_relu").given(slope=0.0), LEFT)
    if twice:
        z = build.pointwise("y0 = x0 + x1;", [z, build.reshape(y, z.shape)])[0]
    passes = build.passes([z], ["x", *names])
    whole = build.graph.graph(z.name)
    inputs = (*whole.inputs, *passes.incoming.values())
    outputs = (z.name, *(passes.found[name] for name in ("x", *names)))
    nodes = (*passes.forward, *passes.backward)
    return Graph(nodes, inputs, outputs, (), whole.scalars), dict(build.constants)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 1, 9), (2, 3, 1)])
def test_norms_take_scales_as_their_parameters(context, rng, shape, bias):
    graph, constants = scaled_norm(shape, bias=bias)
    assert len(kinds(graph)) == 2 and sum("sum" in str(node.problem) for node in graph.nodes) == 0
    joined = join_norms(graph)
    assert [text.split()[-1] for text in kinds(joined)] == ["leaky_relu_stop_nan"] * 2 and len(joined.nodes) == 2
    arrays = {**sample(graph, rng), **constants}
    x, g = arrays["x"].astype(np.float64), arrays["g"].astype(np.float64)[:, None]
    b = arrays["b"].astype(np.float64)[:, None] if bias else 0.0
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    normed = (x - mean) / np.sqrt(var + 1e-3)
    z = normed * g + b
    dy = arrays[next(name for name in arrays if name.startswith("d."))].reshape(shape) * (z > 0)
    inner = g * dy - (g * dy).mean((0, 2), keepdims=True) - normed * (g * dy * normed).mean((0, 2), keepdims=True)
    expected = [np.where(z > 0, z, 0), inner / np.sqrt(var + 1e-3), (dy * normed).sum((0, 2)), dy.sum((0, 2))]
    compiled = context.compile(graph, constants=constants)
    found = compiled.run({name: array for name, array in arrays.items() if name not in constants})
    for name, exact in zip(graph.outputs, expected):
        np.testing.assert_allclose(found[name].ravel(), exact.ravel(), rtol=1e-4, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("changed", [{"gamma": 2.0}, {"twice": True}, {"axis": 0, "shape": (5, 5, 7)}, {"axis": 2}])
def test_other_scales_stay_on_their_own(changed):
    graph, _ = scaled_norm(**changed)
    assert any("x0 * x1 + x2" in str(node.problem) for node in graph.nodes)
