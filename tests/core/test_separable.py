"""Depthwise separable convolutions: the kernel for both layers, the problem, the pass, parts of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.graph import compiled as compiled_module
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import join_separable
from clgraft.core.graph.passes.parts import Segment, in_parts
from clgraft.core.graph.reference import evaluate
from clgraft.core.operators.separable import in_kernel
from tests.core.graphs import sample
from tests.core.guarded_memory import guarded
from tests.problem_sets import problem_lines

TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "float64": 1e-13}  # of the largest element
LINES = problem_lines("separable")
SERVED = {name: text for name, text in LINES.items() if name not in ("half", "large-stride", "empty")}
SETTINGS = ({"vectors": 3, "tiles": 1}, {"vectors": 2, "tiles": 3}, {"vectors": 1, "tiles": 8})


def plan_of(context, problem, settings):
    """Return the plan of the kernel for both layers with these settings; skip what this device cannot run."""
    if problem.dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    try:
        launches = in_kernel.plan(problem, context.planner, settings)
    except Declined as reason:
        pytest.skip(f"declines: {reason}")
    return context.plan_launches(problem, launches, in_kernel.NAME)


def between_nans(array: np.ndarray) -> np.ndarray:
    """Return a copy whose neighbours in memory are NaN."""
    whole = np.full(array.size + 200, np.nan, array.dtype)
    copy = whole[100 : 100 + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def check(plan, problem, rng):
    arrays = problem.sample(rng)
    scalars = {name: 0.25 + 0.5 * i for i, name in enumerate(problem.scalars())}
    expected = problem.reference(arrays, scalars)["y"]
    shape = problem.arguments()[-1].shape
    arrays["x"] = between_nans(arrays["x"])
    written = [np.full(shape, np.nan, problem.dtype) for _ in range(2)]
    for y in written:
        plan.run(scalars, **arrays, y=y)
    old = rng.standard_normal(shape).astype(problem.dtype)
    added = old.copy()
    plan.run(scalars, **arrays, y=core.accumulate(added))
    most = TOLERANCE[problem.dtype] * np.abs(expected).max()
    assert np.abs(written[0] - expected).max() <= most
    assert np.abs(added.astype(np.float64) - old - expected).max() <= 2 * most
    assert written[0].tobytes() == written[1].tobytes()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "{vectors}x{tiles}".format(**settings))
@pytest.mark.parametrize("name", SERVED)
def test_one_kernel_computes_both_layers(context, rng, name, settings):
    """Rows and tiles end in the middle of blocks; what lies around x in memory takes no part."""
    problem = core.parse(SERVED[name])
    check(plan_of(context, problem, settings), problem, rng)


@pytest.mark.parametrize("name", [name for name in LINES if name != "empty"])
def test_layers_in_turn(context, rng, name):
    problem = core.parse(LINES[name])
    if problem.dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    check(context.plan(problem, "in_turn"), problem, rng)


@pytest.mark.parametrize("seed", range(24))
def test_random_sizes(context, rng, seed):
    """Any kernels, strides, dilation and padding; blocks of all sizes, and x at the end of its page."""
    draw = np.random.default_rng(seed)

    def pick(low, high):
        return int(draw.integers(low, high + 1))

    batch, channels, outputs = pick(1, 4), pick(2, 40), pick(1, 40)
    kernel, stride = [pick(1, 5) for _ in range(2)], [pick(1, 2) for _ in range(2)]
    dilate = [pick(1, 3) if max(stride) == 1 else 1 for _ in range(2)]
    begin, end = ([pick(0, k * d) for k, d in zip(kernel, dilate)] for _ in range(2))
    size = [pick(max(1, d * (k - 1) + 1 - b - e), 40) for k, d, b, e in zip(kernel, dilate, begin, end)]
    first = core.ConvProblem(
        *("forward", batch, channels, channels, size, kernel, stride, begin, end, dilate, channels, bool(pick(0, 1)))
    )
    second = core.ConvProblem("forward", batch, channels, outputs, first.out_size, (1, 1), bias=bool(pick(0, 1)))
    problem = core.SeparableProblem(first, second)
    plan = plan_of(context, problem, {"vectors": pick(1, 3), "tiles": pick(1, 8)})
    check(plan, problem, rng)
    arrays = problem.sample(rng)
    y = np.full(second.arguments()[-1].shape, np.nan, np.float32)
    plan.run(**arrays, y=y)
    for at_end in (False, True):
        x, memory = guarded(arrays["x"], at_end)
        again = np.full(y.shape, np.nan, np.float32)
        plan.run(**{**arrays, "x": x}, y=again)
        assert np.array_equal(again, y), memory


@pytest.mark.parametrize("at_end", [False, True], ids=["first page", "last page"])
@pytest.mark.parametrize("name", ["short-rows", "strided-wide", "dilated"])
def test_nothing_beyond_x_is_touched(context, rng, name, at_end):
    problem = core.parse(SERVED[name])
    plan = plan_of(context, problem, SETTINGS[1])
    arrays = {**problem.sample(rng), "y": np.full(problem.arguments()[-1].shape, np.nan, np.float32)}
    kept = {name: guarded(array, at_end) for name, array in arrays.items()}
    plan.run(**arrays)
    plan.run(**{name: copy for name, (copy, _) in kept.items()})
    assert np.array_equal(kept["y"][0], arrays["y"])


def test_sums_have_the_order_of_the_layers(context, rng):
    """In sizes that nets have the bits are those of the two launches."""
    clamp = "y0 = clamp(x0, 0, 6)"
    problem = core.parse(
        f"separable fused conv forward n3 g40 ic40 ih14 iw14 oc40 kh3 kw3 ph1 pw1 b1 with : {clamp}"
        f" then fused conv forward n3 ic40 ih14 iw14 oc24 kh1 kw1 b1 with : {clamp}"
    )
    if not context.device.is_cpu:
        pytest.skip("made for CPU devices")
    arrays = problem.sample(rng)
    results = [np.full((3, 24, 14, 14), np.nan, np.float32) for _ in range(2)]
    plan_of(context, problem, SETTINGS[1]).run(**arrays, y=results[0])
    context.plan(problem, "in_turn").run(**arrays, y=results[1])
    assert np.array_equal(*results)


@pytest.mark.parametrize("settings", [{"vectors": 4, "tiles": 1}, {"vectors": 3, "tiles": 9}, {"vectors": 3}])
def test_other_settings_are_declined(context, settings):
    problem = core.parse(LINES["plain-3x3"])
    with pytest.raises(Declined, match=r"got settings|made for CPU"):
        in_kernel.plan(problem, context.planner, settings)


@pytest.mark.parametrize("name", LINES)
def test_problems_are_read_back(name):
    problem = core.parse(LINES[name])
    assert core.parse(str(problem)) == problem
    names = [argument.name for argument in problem.arguments()]
    assert names[:2] == ["x", "depthwise_w"] and names[-1] == "y" and len(set(names)) == len(names)


@pytest.mark.parametrize("algorithm", ["in_kernel", "in_turn"])
def test_a_result_in_the_memory_of_x_is_refused(context, algorithm):
    problem = core.parse(pair(1, 24, 28, 24))
    if not context.serves(problem, algorithm):
        pytest.skip("declines")
    arrays = {argument.name: np.ones(argument.shape, argument.dtype) for argument in problem.arguments()}
    with pytest.raises(core.ArgumentError):
        context.plan(problem, algorithm).run(**{**arrays, "y": arrays["x"]})


FIRST = "conv forward n2 g6 ic6 ih9 iw9 oc6 kh3 kw3 ph1 pw1"
SECOND = "conv forward n2 ic6 ih9 iw9 oc4 kh1 kw1"


@pytest.mark.parametrize(
    "text, message",
    [
        (FIRST, "expected a convolution, 'then' and a convolution"),
        (f"pointwise x0[2] : y0 = x0 then {SECOND}", "expected a forward convolution"),
        (f"fused dense forward n2 i6 o6 with : y0 = x0 then {SECOND}", "expected a forward convolution"),
        (f"conv backward_data n2 ic6 ih9 iw9 oc4 kh1 kw1 then {SECOND}", "expected a forward convolution"),
        (f"{FIRST.replace('g6', 'g2')} then {SECOND}", "expected one filter for each channel"),
        (f"fused {FIRST} with whole : y0 = x0 + x1 then {SECOND}", "expected extra inputs for each channel"),
        (f"{FIRST} then {SECOND} sh2 sw2", "expected kernels of one pixel"),
        (f"{FIRST} then {SECOND.replace('ih9', 'ih8')}", "expected one that reads the result"),
    ],
)
def test_bad_texts_are_refused(text, message):
    with pytest.raises(core.ProblemError) as caught:
        core.parse(f"separable {text}")
    assert message in str(caught.value)


def test_a_part_has_a_part_of_both_layers():
    problem = core.parse(LINES["short-rows"])
    part = problem.part(5)
    assert part.arguments()[-1].shape == (1, 17, 7, 7) and problem.part(2) is None
    assert core.parse(str(part)) == part


HEAD = f"""input x[2,6,9,9] w[6,1,3,3] v[4,6,1,1] c[6] r[2,4,9,9]
m = x w | {FIRST}
"""


@pytest.mark.parametrize(
    "lines, expected",
    [
        (f"y = m v | {SECOND}\noutput y", f"separable {FIRST} then {SECOND}"),
        (f"n = m {{a=0.5}} | pointwise x0[2,6,9,9] scalars{{a}} : y0 = a * x0\ny = n v | {SECOND}\noutput y", ""),
        (f"y = m v | {SECOND}\noutput y m", ""),
        (f"y = m v | {SECOND}\nz = m | pointwise x0[972] : y0 = -x0\noutput y z", ""),
        (f"y = m v | {SECOND} sh2 sw2\noutput y", ""),
        (f"y = m v r | fused {SECOND} with whole : y0 = x0 + x1\noutput y",
         f"separable {FIRST} then fused {SECOND} with whole : y0 = x0 + x1"),
    ],
)  # fmt: skip
def test_the_pass_joins_what_nothing_else_reads(rng, lines, expected):
    graph = parse_graph(HEAD + lines)
    found = join_separable(graph, lambda problem: True)
    joined = [node.problem for node in found.nodes]
    assert joined == [core.parse(expected)] if expected else found == graph
    arrays = sample(graph, rng)
    for name, array in evaluate(found, arrays).items():
        np.testing.assert_allclose(array, evaluate(graph, arrays)[name], rtol=1e-12, atol=1e-12)
    assert join_separable(graph, lambda problem: False) == graph


@pytest.mark.parametrize(
    "first, second",
    [
        (FIRST.replace("oc6", "oc12"), SECOND.replace("ic6", "ic12")),  # two filters for each channel
        (FIRST.replace("forward", "forward f16"), SECOND.replace("forward", "forward f16")),
        (f"{FIRST} layout=nhwc", f"{SECOND} layout=nhwc"),
        (f"fused {FIRST} with whole : y0 = x0 + x1", SECOND),
    ],
)
def test_the_pass_leaves_other_layers(first, second):
    a, b = core.parse(first), core.parse(second)
    names = ["x", *(f"f{i}" for i in range(len(a.arguments()) - 2))]
    given = [*zip(names, a.arguments()), ("v", b.arguments()[1])]
    words = " ".join(f"{name}{list(argument.shape)}".replace(" ", "") for name, argument in given)
    if a.dtype == "float16":
        words = words.replace("[", ":f16[")
    graph = parse_graph(f"input {words}\nm = {' '.join(names)} | {first}\ny = m v | {second}\noutput y")
    assert join_separable(graph, lambda problem: True) == graph


def test_scalars_keep_their_places(rng):
    """Both layers may have a scalar of one name."""
    graph = parse_graph(
        f"{HEAD.replace('m = x w | ', 'm = x w {a=0.5} | fused ').rstrip()} with scalars{{a}} : y0 = a * x0\n"
        f"y = m v {{a=3}} | fused {SECOND} with scalars{{a}} : y0 = a + x0\noutput y"
    )
    found = join_separable(graph, lambda problem: True)
    assert found.nodes[0].scalars == (0.5, 3.0) and found.nodes[0].problem.scalars() == ("depthwise_a", "a")
    arrays = sample(graph, rng)
    np.testing.assert_allclose(evaluate(found, arrays)["y"], evaluate(graph, arrays)["y"], rtol=1e-12, atol=1e-12)


def pair(batch: int, channels: int, size: int, outputs: int) -> str:
    """Return the text of a separable problem as MobileNet v2 has it."""
    shape = f"ih{size} iw{size}"
    return (
        f"separable fused conv forward n{batch} g{channels} ic{channels} {shape} oc{channels} kh3 kw3 ph1 pw1 b1"
        f" with : y0 = clamp(x0, 0, 6)"
        f" then fused conv forward n{batch} ic{channels} {shape} oc{outputs} kh1 kw1 b1 with whole : y0 = x0 + x1"
    )


class Machine:
    """A planner for a CPU with so many cores, which builds nothing."""

    def __init__(self, context, cores):
        sizes = {"compute_units": cores, "vector_width": 16, "local_memory": 2**20}
        self.device = replace(context.device, is_cpu=True, **sizes)

    def kernel(self, *_):
        return None


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("channels, size, outputs, pays", [(144, 56, 24, True), (1024, 7, 1024, False)])
def test_layers_stay_apart_where_that_is_faster(context, cores, channels, size, outputs, pays):
    problem = core.parse(pair(8, channels, size, outputs))
    if pays:
        assert in_kernel.plan(problem, Machine(context, cores)).launches[-1].global_size == (cores, 1, 1)
        return
    with pytest.raises(Declined, match="cycles by estimate"):
        in_kernel.plan(problem, Machine(context, cores))


@pytest.mark.parametrize("constant", [False, True], ids=["weights as inputs", "weights as constants"])
def test_graphs_join_layers(context, rng, monkeypatch, constant):
    """Whole, and in parts of the batch, with weights that are packed once."""
    problem = core.parse(pair(4, 48, 28, 24))
    graph = parse_graph(
        "input x[4,48,28,28] w[48,1,3,3] c[48] v[24,48,1,1] b[24] r[4,24,28,28]\n"
        f"m = x w c | {problem.depthwise}\ny = m v b r | {problem.product}\n"
        "z = y | pointwise x0[4,24,28,28] : y0 = -x0\noutput z"
    )
    arrays = sample(graph, rng)
    weights = {name: array for name, array in arrays.items() if constant and name not in "xr"}
    given = {name: array for name, array in arrays.items() if name not in weights}
    expected = evaluate(graph, arrays)["z"]
    for count in (1, 2):
        monkeypatch.setattr(
            compiled_module, "split_batch", lambda graph, *_, count=count: in_parts(graph, segments(graph, count))
        )
        compiled = context.compile(graph, "-all,separable,parts,views,prepare", weights)
        for _ in range(2):
            z = np.full(expected.shape, np.nan, np.float32)
            compiled.run({**given, "z": z})
            assert np.abs(z - expected).max() <= 3e-6 * np.abs(expected).max()
        joined = [text for text, _ in compiled.report().algorithms if text.startswith("separable")]
        assert len(joined) == (count if context.serves(problem, "in_kernel") else 0)


def segments(graph, count):
    """Return one segment of all nodes but the last, if there are several parts."""
    return [Segment(tuple(range(len(graph.nodes) - 1)), count)] if count > 1 else []
