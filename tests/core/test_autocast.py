"""Graphs of two types: which problems take 16 bits, and what they compute, against the float32 graph in float64."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph.passes import optimise
from clgraft.core.graph.passes.autocast import mix_types, small_name
from clgraft.core.graph.passes.casts import join_casts
from clgraft.core.graph.reference import evaluate
from tests.core.graphs import sample, small_net

# largest error through six layers, relative to the norm of a result: a few roundings of the type; gradients have twice
# as many layers, and kinks on whose other side some elements fall
ROUNDINGS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
OF_RESULTS, OF_GRADIENTS = 8, 40
SMALL = sorted(ROUNDINGS)


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the error relative to the norm of what is expected."""
    expected = expected.reshape(found.shape)
    return float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0))


def loss_net() -> Graph:
    """Return a net whose loss is a softmax's cross entropy, with a norm by moments and a gate in front of it."""
    on = GraphBuilder()
    x, label = on.input("x", (6, 5)), on.input("label", (6,))
    (h,) = on.add("dense forward n6 i5 o32 b1", x, on.input("w0", (32, 5)), on.input("b0", (32,)))
    mean, square = on.add("pointwise x0[6,32] y0[6,1]=sum y1[6,1]=sum : y0 = x0 / 32; y1 = x0 * x0 / 32;", h)
    text = "pointwise x0[6,32] x1[6,1] x2[6,1] x3[32] : y0 = (x0 - x1) * rsqrt(x2 - x1 * x1 + 0.01) * x3;"
    (h,) = on.add(text, h, mean, square, on.input("gamma", (32,)))
    (h,) = on.add("pointwise x0[6,32] : y0 = x0 / (1 + exp(-x0));", h)
    (h,) = on.add("dense forward n6 i32 o4 b1", h, on.input("w1", (4, 32)), on.input("b1", (4,)))
    (y,) = on.add("softmax forward n6 c4", h, scalars={"scale": 1.0})
    loss, *_ = on.add("crossentropy forward n6 c4", y, label, scalars={"lowest": 1e-30}, unwanted=["counts"])
    return on.graph(loss)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("passes", ["", "-all"])
def test_results_and_gradients_are_near_float64(context, rng, dtype, passes):
    core.problem.expect_in_numpy("test", dtype)
    for graph in (small_net(), small_net(training=True), loss_net()):
        wrt = [
            value.name for value in graph.inputs if value.name != "label" and not value.name.endswith(("mean", "var"))
        ]
        whole = graph.gradients(wrt)
        arrays = sample(whole, rng)
        if "label" in arrays:
            arrays["label"] = np.arange(6, dtype="float32") % 4
        expected = evaluate(whole, arrays)
        compiled = context.compile(whole, passes, precision=dtype)
        found = compiled.run(arrays)
        problems = "\n".join(text for text, _ in compiled.report().algorithms)
        assert {"float16": " f16 ", "bfloat16": " bf16 "}[dtype] in problems
        for name in whole.outputs:
            assert found[name].dtype == np.float32
            most = OF_GRADIENTS if name.startswith("d.") else OF_RESULTS
            assert off(found[name], expected[name]) <= most * ROUNDINGS[dtype], name


def text_of(graph: Graph) -> str:
    return "\n".join(line for line in str(graph).splitlines() if "|" in line or line.startswith("output"))


def test_types_of_a_training_step():
    """Products, norms and rectifiers take 16 bits, statistics, sums, softmax and losses float32; casts are few."""
    whole = loss_net().gradients(["w0", "gamma"])
    text = text_of(mix_types(whole, "float16"))
    for line in text.splitlines():
        if "| dense" in line:
            assert " f16 " in line
        if "| softmax" in line or "| crossentropy" in line:
            assert " f16 " not in line
    casts = [line for line in text.splitlines() if line.endswith(": y0 = x0;")]
    read = [line.split(" = ")[1].split(" |")[0] for line in casts]
    assert len(set(read)) == len(read)  # each value once
    assert {"x", "w0", "w1"} <= set(read) and not {"gamma", "label"} & set(read)
    assert "v4.f16 = v1.f16 v2 v3 gamma | pointwise f16 x0[6,32] x1[6,1] x2[6,1] x3[32] f32{x1,x2,x3} :" in text


def test_casts_become_parts_of_chains_and_fold_into_constants(context, rng):
    on = GraphBuilder()
    x, w = on.input("x", (6, 5)), on.input("w", (4, 5))
    (h,) = on.add("pointwise x0[6,5] : y0 = x0 * 2 + 1;", x)
    (h,) = on.add("dense forward n6 i5 o4", h, w)
    (y,) = on.add("pointwise x0[6,4] : y0 = exp(x0);", h)
    graph = on.graph(y)
    names = [str(node.problem).split()[0] for node in optimise(graph, mixed="bfloat16").nodes]
    assert sorted(names) == ["dense", "pointwise", "pointwise", "pointwise"]
    arrays = sample(graph, rng)
    compiled = context.compile(graph, constants={"w": arrays.pop("w")}, precision="bfloat16")
    assert compiled.report().nodes == 3
    found = compiled.run(arrays)[y]
    assert found.dtype == np.float32 and found.max() < np.inf


CONVERSIONS = """
input a[4,9] b[2,3,5] c[9] d[2,3,5]
state s[9]
a16 = a | pointwise f16 x0[4,9] f32{x0} : y0 = x0;
b16 = b | pointwise f16 x0[2,3,5] f32{x0} : y0 = x0;
bt = b16 | transpose f16 x[2,3,5] axes[0,2,1]
s16 = s | cast n9 from_f32 to_f16
e = a16 s16 | pointwise f16 x0[4,9] x1[9] : y0 = x0 + x1;
s = c s | pointwise x0[9] beta{1} : y0 = x0
late = s | cast n9 from_f32 to_f16
c16 = c | cast n9 from_f32 to_f16
d16 = d | cast n30 from_f32 to_f16
dt = d16 | transpose f16 x[2,3,5] axes[0,2,1]
f = dt bt | pointwise f16 x0[2,5,3] x1[2,5,3] : y0 = x0 * x1;
r = e | pointwise f16 x0[4,9] f32{y0} : y0 = x0;
g = f | transpose f16 x[2,5,3] axes[0,2,1]
q = g | cast n30 from_f16 to_f32
output r q late c16 d16
"""


def test_conversions_run_together(context, rng):
    """A cast and a transposition are one problem, and where no state changes between, several arrays are one."""
    graph = parse_graph(CONVERSIONS)
    joined = join_casts(graph)
    kinds = [(node.problem.kind, len(node.reads)) for node in joined.nodes]
    assert kinds == [
        *(("casts", 5), ("pointwise", 2), ("pointwise", 2), ("cast", 1), ("transpose", 1), ("pointwise", 2)),
        ("casts", 2),
    ]
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    results = []
    for one in (graph, joined):
        given = {name: array.copy() for name, array in arrays.items()}
        found = context.compile(one, "-all").run(given)
        results.append([given["s"], *(found[name] for name in graph.outputs)])
        exact = evaluate(one, arrays)
        assert all(off(found[name], exact[name]) <= 2**-10 for name in graph.outputs)
    assert all(np.array_equal(a.ravel(), b.ravel()) for a, b in zip(*results))
    step = optimise(loss_net().gradients(["w0", "w1", "b0"]), mixed="float16")
    assert len(join_casts(step).nodes) < len(step.nodes)


def test_the_forward_pass_alone_is_that_of_both():
    """Which type a value has follows from what is before it, so a backward pass finds what it needs by name."""
    whole = small_net(training=True).gradients(["w0", "w1"])
    count = len(small_net(training=True).nodes)
    forward = Graph(whole.nodes[:count], whole.inputs[:-1], (whole.outputs[0],), whole.states)
    both, alone = mix_types(whole, "float16"), mix_types(forward, "float16")
    assert [node for node in alone.nodes if node not in both.nodes] == []
    (value,) = (node.writes[0] for node in forward.nodes if str(node.problem).startswith("dense"))
    late = mix_types(forward, "float16", [small_name(forward.nodes[-1].writes[0], "float16")])
    assert value and small_name(forward.nodes[-1].writes[0], "float16") in late.values


def test_other_words_are_refused(context):
    graph = small_net()
    with pytest.raises(core.ArgumentError, match="got 'fp16', expected one of"):
        context.compile(graph, precision="fp16")


@pytest.mark.parametrize(
    "text, wide",
    [
        ("y0 = x0 > 0 ? x0 : 0", False),
        ("y0 = exp(x0)", True),
        ("y0 = 1 / (1 + exp(-x0))", False),
        ("y0 = x0 / (1 + exp(-x0))", False),
        ("y0 = x0 * tanh(log1p(exp(x0)))", False),
        ("real t = log(x0); y0 = t + 1", True),
        ("y0 = x0 * x0", True),
        ("y0 = 1 - x0 * x0", False),
        ("y0 = x0 > 0 ? x0 : -1e9", True),
        ("y0 = 2 / x0", True),
        ("y0 = x0 / 2", False),
    ],
)
def test_functions_that_need_float32(text, wide):
    line = f"input x[3,4] w[4,4]\nh = x w | dense forward n3 i4 o4\ny = h | pointwise x0[3,4] : {text}\noutput y\n"
    last = next(node for node in mix_types(parse_graph(line), "float16").nodes if node.reads == ("h.f16",))
    assert last.problem.type_of("y0") == ("float32" if wide else "float16")


def test_mixed_types_in_a_pointwise_problem(context, rng):
    """Each argument is read and written in its type, broadcast, folded and added to, and gradients follow the types."""
    for text in (
        "f16 x0[3,70] x1[70] f32{x1,y1} : y0 = x0 * x1; y1 = x0 + x1",
        "bf16 x0[3,70] x1[3,1] y1[3,1]=sum f32{x0,y1} : y0 = x0 * x1; y1 = x0 * x1",
        "f16 x0[2,300,5] y0[300,1]=max f32{y0} : y0 = x0",
        "f16 x0[4099] f32{x0} : y0 = x0",
        "bf16 x0[4099] f32{y0} : y0 = x0",
    ):
        problem = core.parse(f"pointwise {text}")
        assert core.parse(str(problem)) == problem
        given = problem.sample(rng)
        expected = problem.reference(given)
        results = {a.name: np.full(a.shape, 1, a.dtype) for a in problem.arguments() if a.role == "out"}
        context.plan(problem).run(**given, **{name: core.accumulate(array) for name, array in results.items()})
        for argument in problem.arguments():
            if argument.role == "out":
                found, unit = results[argument.name].astype(np.float64), {"float32": 2.0**-20}.get(argument.dtype)
                unit = unit or 2 * ROUNDINGS[argument.dtype]
                exact = expected[argument.name].reshape(found.shape) + 1
                assert (np.abs(found - exact) <= unit * (1 + np.abs(exact))).all(), text
        for gradient in problem.gradients():
            types = {gradient.arguments[a.name].lstrip("d"): a.dtype for a in gradient.problem.arguments()}
            own = {a.name: a.dtype for a in problem.arguments()}
            assert all(own.get(name, dtype) == dtype for name, dtype in types.items())
    with pytest.raises(core.ProblemError, match="float32 arguments"):
        core.parse("pointwise x0[3] f32{x0} : y0 = x0")


STEP = """
input x[8,6] dy[8,4]
state w[4,6] h[4,6] v[4]
scalar lr
y = x w | dense forward n8 i6 o4
again = x w | dense forward n8 i6 o4
dw = x dy | dense backward_weight n8 i6 o4
db = dy | dense backward_bias n8 i6 o4
w h = dw w h {lr=lr} | update x0[4,6] x1[4,6] x2[4,6] scalars{lr} : real n = 0.5 * x2 + x0; y0 = x1 - lr * n; y1 = n
v = db v {lr=lr} | update x0[4] x1[4] scalars{lr} : y0 = x1 - lr * x0
after = x w | dense forward n8 i6 o4
output y again after
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_updates_read_gradients_in_16_bits(context, rng, dtype):
    """What they change stays float32. A parameter is cast once, and again once it has changed."""
    graph = parse_graph(STEP)
    mixed = mix_types(graph, dtype)
    word = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    problems = [str(node.problem) for node in mixed.nodes]
    assert f"update {word} x0[4,6] x1[4,6] x2[4,6] scalars{{lr}} f32{{x1,x2,y0,y1}} :" in " ".join(problems)
    casts = [node.reads[0] for node in mixed.nodes if str(node.problem).endswith(": y0 = x0;")]
    assert casts.count("w") == 2 and f"dw.{word}" not in casts
    arrays = {name: array.astype(np.float32) for name, array in sample(graph, rng).items()}
    given = {name: array.copy() for name, array in arrays.items()}
    found = context.compile(graph, precision=dtype).run(given, {"lr": 0.25})
    roundings = 8 * ROUNDINGS[dtype]
    dw = arrays["dy"].T @ arrays["x"]
    h = 0.5 * arrays["h"] + dw
    w = arrays["w"] - 0.25 * h
    v = arrays["v"] - 0.25 * arrays["dy"].sum(0)
    for name, exact in (("w", w), ("h", h), ("v", v)):
        assert given[name].dtype == np.float32 and off(given[name], exact) <= roundings, name
    for name, weights in (("y", arrays["w"]), ("again", arrays["w"]), ("after", w)):
        assert off(found[name], arrays["x"] @ weights.T) <= roundings, name
