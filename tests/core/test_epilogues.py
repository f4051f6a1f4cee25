"""Layers with what follows them in their kernels: every implementation with epilogues, and the pass."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import fuse_epilogues, join_chains
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.planning.implementation import Fusable, implementations
from clgraft.core.problem import ROUNDING
from tests.core.pair_contexts import emulated_pairs

TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-13}  # of the largest element
RELU = "y0 = x0 > 0 ? x0 : 0"
BOTH = "with whole channel scalars{a} : real t = x0 * x2 + a * x1; y0 = t > 0 ? t : 0.25 * t"
CHANNELS = "with channel scalars{a} : real t = x0 * x1 - a; y0 = t > 0 ? t : 0.25 * t"
# layers whose results end in the middle of vectors, of tiles, of parts of a sum; and the implementations to try
LAYERS = {
    "conv forward n3 ic40 ih13 iw11 oc21 kh3 kw3 ph1 pw1 sh2 sw2 b1": ("cpu_gemm", "gpu_gemm"),
    "conv forward g2 n2 ic640 ih9 iw11 oc22 kh1 kw1": ("cpu_gemm", "gpu_gemm"),
    "conv forward n5 ic6 ih7 iw7 oc19 kh1 kw1 b1": ("cpu_gemm",),
    "conv forward bf16 n5 ic6 ih7 iw7 oc19 kh1 kw1 b1": ("cpu_pairs", "cpu_gemm"),
    "conv forward n1 ic3 id5 ih6 iw7 oc9 kd3 kh3 kw3 pd1": ("cpu_gemm", "direct"),
    "conv forward f16 n2 ic70 ih9 iw11 oc13 kh3 kw3 ph1 pw1 b1": ("cpu_gemm",),
    "conv forward bf16 n2 ic70 ih9 iw11 oc13 kh3 kw3 ph1 pw1 b1": ("cpu_gemm", "gpu_gemm"),
    "conv forward f64 n2 ic17 ih9 iw11 oc13 kh3 kw3 ph1 pw1 b1": ("cpu_gemm",),
    "conv forward n2 ic19 ih15 iw13 oc37 kh3 kw3 ph1 pw1 b1": ("winograd",),
    "conv forward n8 ic64 ih30 iw31 oc70 kh3 kw3 ph1 pw1": ("winograd",),
    "conv forward n3 ic64 ih15 iw13 oc37 kh5 kw5 ph2 pw2 b1": ("winograd",),
    "conv forward n8 ic128 ih31 iw29 oc70 kh3 kw3 sh2 sw2 ph1 pw1 b1": ("winograd",),
    "conv forward n2 ic64 ih9 iw13 oc37 kh7 kw1 ph3 b1": ("winograd",),
    "conv forward n2 ic3 ih33 iw29 oc61 kh7 kw7 sh2 sw2 ph3 pw3 b1": ("few_channels_cpu",),
    "conv forward bf16 n2 ic3 ih33 iw29 oc61 kh7 kw7 sh2 sw2 ph3 pw3 b1": ("few_channels_cpu",),
    "conv forward n2 ic19 ih15 iw29 oc3 kh3 kw3 ph1 pw1 b1": ("few_planes_cpu",),
    "conv forward n2 ic3 ih15 iw29 oc37 kh3 kw3 ph1 pw1 b1": ("few_planes_cpu",),
    "conv forward bf16 n2 ic3 ih33 iw63 oc37 kh3 kw3 sh2 sw2 ph1 pw1 b1": ("few_planes_cpu",),
    "conv forward bf16 g12 n2 ic12 ih14 iw14 oc12 kh3 kw3 ph1 pw1 b1": ("depthwise_fixed",),
    "conv forward g12 n2 ic12 ih13 iw13 oc12 kh3 kw3 ph1 pw1 b1": (
        *("depthwise_fixed", "grouped_planes", "depthwise_rows", "depthwise"),
    ),
    "conv forward g6 n2 ic6 ih9 iw9 oc12 kh3 kw3 sh2 sw2 ph1 pw1": (
        *("depthwise_fixed", "grouped_planes", "depthwise_gpu"),
    ),
    "conv forward g2 n2 ic10 ih17 iw33 oc6 kh3 kw3 ph1 pw1 b1": ("few_channels_gpu", "gpu_gemm"),
    "conv forward g5 n2 ic5 ih40 iw37 oc5 kh3 kw3 sh2 sw2 ph1 pw1 b1": ("depthwise_rows", "depthwise"),
    "conv forward n2 ic19 ih9 iw7 oc21 kh3 kw3 sh2 sw2 ph1 pw1 b1 layout=nhwc": ("transposes",),
    "dense forward n5 i4130 o37 b1": ("cpu",),
    "dense forward n21 i130 o67 b1": ("cpu_panel",),
    "dense forward f16 n3 i33 o19": ("cpu",),
    "dense forward bf16 n3 i33 o19": ("cpu",),
    "dense forward n8 i130 o70 t1 b1": ("cpu",),
}


def plan_of(context, problem, name):
    """Return the plan of a problem by an implementation of its layer; skip what this device cannot run."""
    implementation = next(item for item in implementations(problem.base) if name == item.NAME)
    assert isinstance(implementation, Fusable)
    if not implementation.fuses(problem.base, problem.epilogue):
        return None
    try:
        launches = implementation.plan(problem.base, context.planner, epilogue=problem.epilogue)
    except Declined as reason:
        pytest.skip(f"{name} declines: {reason}")
    return context.plan_launches(problem, launches, name)


def check(plan, problem, rng):
    arrays = problem.sample(rng)
    scalars = problem.trial_scalars()
    expected = problem.reference(arrays, scalars)[problem.result]
    written = np.full(problem.shape, np.nan, problem.dtype)
    plan.run(scalars=scalars, **arrays, **{problem.result: written})
    old = rng.standard_normal(problem.shape).astype(problem.dtype)
    added = old.copy()
    plan.run(scalars=scalars, **arrays, **{problem.result: core.accumulate(added)})
    most = TOLERANCE[problem.dtype] * np.abs(expected).max()
    assert np.abs(written - expected).max() <= most, plan.algorithm
    assert np.abs(added.astype(np.float64) - old - expected).max() <= 2 * most, plan.algorithm


@pytest.mark.parametrize("layer, name", [(layer, name) for layer, names in LAYERS.items() for name in names])
def test_kernels_compute_what_follows_them(context, rng, layer, name):
    if " f64 " in layer and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    if name == "cpu_pairs":  # processors may have none, or slow ones
        context = emulated_pairs()
    whole, channels = (core.parse(f"fused {layer} {epilogue}") for epilogue in (BOTH, CHANNELS))
    plan = plan_of(context, whole, name)
    if plan is None:  # depthwise kernels on CPU devices read no other arrays of their result's size
        whole, plan = channels, plan_of(context, channels, name)
    check(plan, whole, rng)


def test_the_implementation_of_a_layer_is_kept(context):
    """A fused layer is computed as the layer alone is, or by two launches that are as fast."""
    for layer in LAYERS:
        if " f64 " in layer and not context.device.has_fp64:
            continue
        problem = core.parse(f"fused {layer} {CHANNELS}")
        alone = context.choose(problem.base).algorithm
        assert context.serves(problem, "in_kernel") == (alone != "through_convolution"), f"{alone} has no epilogues"


def test_epilogues_may_be_launches_of_their_own(context, rng):
    problem = core.parse(f"fused {next(iter(LAYERS))} {BOTH}")
    check(context.plan(problem, "in_turn"), problem, rng)


@pytest.mark.parametrize("text", FusedProblem.examples)
def test_problems_are_read_back_and_planned(context, rng, text):
    problem = core.parse(f"fused {text}")
    assert core.parse(str(problem)) == problem
    check(context.plan(problem), problem, rng)


@pytest.mark.parametrize(
    "text, message",
    [
        ("conv forward n1 ic1 ih3 iw3 oc1 kh1 kw1 : y0 = x0", "expected a problem, 'with'"),
        ("conv backward_filter n1 ic1 ih3 iw3 oc1 kh1 kw1 with : y0 = x0", "expected a forward convolution"),
        ("pointwise x0[3] : y0 = x0; with : y0 = x0", "expected a forward convolution"),
        ("conv forward n1 ic1 ih3 iw3 oc1 kh1 kw1 with row : y0 = x0 + x1", "expected words of"),
        ("conv forward n1 ic1 ih3 iw3 oc1 kh1 kw1 with : y0 = x0 + x1", "the name 'x1'"),
        ("conv forward n1 ic1 ih3 iw3 oc1 kh1 kw1 with : y0 = x0; y1 = x0", "expected one output"),
        (f"conv forward n1 ic1 ih3 iw3 oc1 kh1 kw1 with {'whole ' * 9}: y0 = x0", "expected at most 8"),
    ],
)
def test_bad_texts_are_refused(text, message):
    with pytest.raises(core.ProblemError) as caught:
        core.parse(f"fused {text}")
    assert message in str(caught.value)


HEAD = """input x[2,6,9,11] w[10,6,3,3] c[10] r[2,10,9,11] one[1] big[3,1980]
y = x w | conv forward n2 ic6 ih9 iw11 oc10 kh3 kw3 ph1 pw1
"""

SHAPES_OF_GRADIENTS = {"d": "2,10,5,6", "w": "10,6,3,3", "c": "6", "r": "2,6,9,11", "m": "2,6,9,11"}


@pytest.mark.parametrize(
    "lines, expected",
    [
        (f"z = y | pointwise x0[2,10,99] : {RELU}\noutput z", f"with : {RELU}"),
        ("z = c y r | pointwise x0[10,1] x1[2,10,99] x2[2,10,99] : y0 = x0 * x1 + x2\noutput z",
         "with channel whole : y0 = x1 * x0 + x2"),
        ("z = y r | pointwise x0[1980] x1[1980] : y0 = x1 - x0\noutput z", "with whole : y0 = x1 - x0"),
        ("z = y y | pointwise x0[1980] x1[1980] : y0 = x1 * x0\noutput z", "with : y0 = x0 * x0"),
        ("z = y {a=0.5} | pointwise x0[1980] scalars{a} : y0 = a * x0\noutput z", "with scalars{a} : y0 = a * x0"),
        (f"z = y | pointwise x0[2,10,99] : {RELU}\noutput z y", ""),
        (f"z = y | pointwise x0[1980] : {RELU}\nt = y z | pointwise x0[1980] x1[1980] : y0 = x0 + x1\noutput t", ""),
        ("z = y one | pointwise x0[1980] x1[1] : y0 = x0 + x1\noutput z", ""),
        ("z = y c | pointwise x0[2,99,10] x1[10] : y0 = x0 + x1\noutput z", ""),
        ("z = y | pointwise x0[2,10,99] y0=sum[2] : y0 = x0\noutput z", ""),
        ("z _ = y | pointwise x0[2,10,99] : y0 = x0; y1 = -x0\noutput z", ""),
        ("z = big y | pointwise x0[3,1980] x1[1980] : y0 = x0 + x1\noutput z", ""),
    ],
)  # fmt: skip
def test_only_what_a_kernel_can_compute_is_fused(context, rng, lines, expected):
    graph = parse_graph(HEAD + lines)
    fused = fuse_epilogues(graph, lambda problem: True)
    texts = [str(node.problem) for node in fused.nodes if isinstance(node.problem, FusedProblem)]
    assert [text.partition(" with")[2] for text in texts] == ([expected[4:]] if expected else [])
    arrays = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    one, two = evaluate(graph, arrays), evaluate(fused, arrays)
    found = context.compile(fused, "-all").run(arrays)
    for name in graph.outputs:
        assert np.allclose(one[name].ravel(), two[name].ravel(), rtol=1e-12, atol=1e-12)
        assert np.abs(found[name].ravel() - one[name].ravel()).max() <= 2e-6 * np.abs(one[name]).max()


def test_a_device_decides_what_is_fused(context, rng):
    graph = parse_graph(HEAD + f"z = y | pointwise x0[2,10,99] : {RELU}\noutput z")
    assert fuse_epilogues(graph, lambda problem: False) == graph
    arrays = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    fused, apart = context.compile(graph), context.compile(graph, "-epilogues")
    assert np.abs(fused.run(arrays)["z"] - apart.run(arrays)["z"]).max() <= 1e-5
    layer = context.choose(graph.nodes[0].problem).algorithm
    one = fused.report()
    assert one.nodes == apart.report().nodes - 1 and one.launches == apart.report().launches - 1
    assert dict(one.algorithms)[str(fuse_epilogues(graph, lambda problem: True).nodes[0].problem)] == "in_kernel", layer


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_types_of_16_bits_are_rounded_once(context, rng, dtype):
    text = HEAD.replace("x[", f"x:{dtype}[").replace(" w[", f" w:{dtype}[").replace("forward", f"forward {dtype}")
    graph = parse_graph(text + f"z = y | pointwise {dtype} x0[1980] : {RELU}\noutput z")
    fused = fuse_epilogues(graph, lambda problem: True)
    assert len(fused.nodes) == len(graph.nodes) - 1
    arrays = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    exact, unit = evaluate(graph, arrays)["z"], ROUNDING[graph.inputs[0].dtype]
    for passes in ("", "-all"):
        found = context.compile(graph, passes).run(arrays)["z"].astype(np.float64)
        assert np.abs(found - exact).max() <= 3 * unit * np.abs(exact).max()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_data_gradients_of_16_bits_are_fused(context, rng, dtype):
    given = " ".join(f"{name}:{dtype}[{shape}]" for name, shape in SHAPES_OF_GRADIENTS.items())
    graph = parse_graph(
        f"input {given}\ng = d w | conv backward_data {dtype} n2 ic6 ih9 iw11 oc10 kh3 kw3 sh2 sw2 ph1 pw1\n"
        f"z = c g r m | pointwise {dtype} x0[6,1] x1[2,6,99] x2[2,6,99] x3[2,6,99] : y0 = x3 > 0 ? x1 * x0 + x2 : 0\n"
        "output z"
    )
    fused = fuse_epilogues(graph, lambda problem: True)
    if dtype == "f32":
        assert fused == graph
        return
    assert str(fused.nodes[0].problem).endswith(" with channel whole whole : y0 = x3 > 0 ? x0 * x1 + x2 : 0")
    arrays = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    exact = evaluate(graph, arrays)["z"].ravel()
    for one in (graph, fused):
        found = context.compile(one, "-all").run(arrays)["z"].ravel()
        assert np.abs(found - exact).max() <= 3 * ROUNDING["float16"] * np.abs(exact).max()


def test_a_layer_stays_in_front_of_a_change_of_its_state():
    graph = parse_graph(
        "input m[6] v[6] k[6,6]\nstate sm[6] sv[6]\n"
        "y = sm k | dense forward n1 i6 o6\n"
        "sm sv = m v sm sv {keep=0.9, add_mean=0.1, add_var=0.1} | batchnorm update_statistics n1 c6 s1\n"
        f"z = y | pointwise x0[6] : {RELU}\noutput z"
    )
    assert fuse_epilogues(graph, lambda problem: True) == graph


def test_chains_are_fused_whole(context, rng):
    graph = parse_graph(
        HEAD + "a = y c | pointwise x0[2,10,99] x1[10,1] : y0 = x0 * x1\n"
        "b = a r | pointwise x0[2,10,99] x1[2,10,99] : y0 = x0 + x1\n"
        f"z = b | pointwise x0[2,10,99] : {RELU}\noutput z"
    )
    fused = fuse_epilogues(join_chains(graph), lambda problem: True)
    assert len(fused.nodes) == 1
    arrays = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    expected = evaluate(graph, arrays)["z"]
    for passes in ("", "-epilogues", "-all"):
        found = context.compile(graph, passes).run(arrays)["z"]
        assert np.abs(found.ravel() - expected.ravel()).max() <= 2e-6 * np.abs(expected).max()


def test_fused_layers_are_differentiated(context, rng):
    graph = parse_graph(
        "input x[2,6,9,11] w[10,6,3,3] c[10] r[2,10,9,11]\n"
        "z = x w c r | fused conv forward n2 ic6 ih9 iw11 oc10 kh3 kw3 ph1 pw1 with channel whole"
        " : y0 = tanh(x0 * x1 + x2)\noutput z"
    )
    apart = parse_graph(
        "input x[2,6,9,11] w[10,6,3,3] c[10] r[2,10,9,11]\n"
        "y = x w | conv forward n2 ic6 ih9 iw11 oc10 kh3 kw3 ph1 pw1\n"
        "z = y c r | pointwise x0[2,10,99] x1[10,1] x2[2,10,99] : y0 = tanh(x0 * x1 + x2)\noutput z"
    )
    one, two = (each.gradients(["x", "w", "c", "r"]) for each in (graph, apart))
    arrays = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in one.inputs}
    expected = evaluate(two, {**arrays, "d.z": arrays["d.z"]})
    found = context.compile(one).run(arrays)
    for first, second in zip(one.outputs, two.outputs):
        scale = np.abs(expected[second]).max()
        assert np.abs(found[first].ravel() - expected[second].ravel()).max() <= 2e-5 * scale, first
