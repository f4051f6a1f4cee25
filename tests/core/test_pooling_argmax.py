"""The argmax that max pooling keeps: its place in the window, and the gradient that reads it, bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PoolProblem, ProblemError
from clgraft.core.graph import Graph, Node, Value
from clgraft.core.graph.passes import keep_argmax
from clgraft.core.operators.pooling import planes
from clgraft.core.session.context import Context
from tests.core.guarded_memory import guarded
from tests.core.pointwise_checks import MACHINES, planning_for, run
from tests.core.test_pooling import parse, random_problem
from tests.problem_sets import problem_lines

LINES = {name: line for name, line in problem_lines("pooling").items() if " max" in line}


def values_of(problem: PoolProblem, seed: int = 0) -> np.ndarray:
    """Return x whose windows hold their maximum twice, the lowest number, zeros of both signs, or no number at all."""
    lowest = np.finfo(problem.dtype).min
    x = np.random.default_rng(seed).choice(
        [np.nan, -np.inf, lowest, -0.0, 0.0, 1.0], problem.arguments()[0].shape, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05]
    )
    return x.astype(problem.dtype)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def check(context: Context, problem: PoolProblem, x: np.ndarray, seed: int = 0) -> None:
    """Compare with the reference, and y and dx with those of the directions that keep nothing, bit by bit."""
    forward = problem.with_direction("forward_argmax")
    assert core.parse(str(forward)) == forward
    results = run(context, forward, {"x": x})
    expected = forward.reference({"x": x})
    np.testing.assert_array_equal(results["argmax"], expected["argmax"])
    np.testing.assert_array_equal(results["y"], expected["y"].astype(problem.dtype))
    dy = np.random.default_rng(seed).standard_normal(results["y"].shape).astype(problem.dtype)
    backward = {"argmax": results["argmax"], "dy": dy}
    (got,) = run(context, problem.with_direction("backward_argmax"), backward).values()
    (searched,) = run(context, problem.with_direction("backward"), {"x": x, "y": results["y"], "dy": dy}).values()
    np.testing.assert_array_equal(bits(got), bits(searched))


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("name", LINES)
def test_matches_the_search(name: str, machine: str) -> None:
    problem = parse(LINES[name], "forward")
    if math.prod(problem.kernel) > 255:
        with pytest.raises(ProblemError, match=r"\[pool\] got kernel .*, expected at most 255 places"):
            problem.with_direction("forward_argmax")
        return
    with planning_for(machine) as context:
        check(context, problem, values_of(problem))


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize(
    "name",
    [
        "pair",
        "resnet-stem",
        "stride-3",
        "volume",
        "half",
        "double",
        "tiles",
        "whole-max",
        "whole-planes",
        "half-whole-max",
    ],
)
def test_a_maximum_that_is_not_a_number_has_no_place(name: str, machine: str) -> None:
    problem = parse(f"{LINES[name]} keep_nan", "forward")
    with planning_for(machine) as context:
        check(context, problem, values_of(problem))


@pytest.mark.parametrize("seed", range(6))
def test_random_problems(seed: int) -> None:
    found = random_problem(np.random.default_rng(seed), "forward")
    problem = core.parse(str(found).replace(f"forward {found.operator}", "forward max").replace(" count_inside", ""))
    assert isinstance(problem, PoolProblem)
    if math.prod(problem.kernel) <= 255:
        check(core.context(), problem, values_of(problem, seed), seed)


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
@pytest.mark.parametrize("line", ["pool max n3 c5 ih9 iw19 kh3 kw3 sh2 sw2 ph1 pw1", "pool max n2 c3 ih5 iw30 kh2 kw3"])
def test_stays_within_its_memory(line: str) -> None:
    """Whatever the vectors and work-items: places beyond the last of a run belong to another work-item."""
    context = Context.on(None)
    forward = parse(line, "forward_argmax")
    x = values_of(forward)
    expected = forward.reference({"x": x})
    dy = np.random.default_rng(1).standard_normal(expected["y"].shape).astype(np.float32)
    backward = forward.with_direction("backward_argmax")
    arrays = {"x": x, "y": np.full(dy.shape, np.nan, np.float32), "argmax": np.full(dy.shape, 77, np.uint8)}
    for number, (lanes, items) in enumerate(((16, 3), (8, 32))):
        settings = {"lanes": lanes, "items": items}
        at_edge = {name: guarded(array, at_end=number == 0)[0] for name, array in arrays.items()}
        plan = context.plan_launches(forward, planes.plan(forward, context, settings), "planes")
        plan.run(**at_edge)
        for name in ("y", "argmax"):
            np.testing.assert_array_equal(at_edge[name], expected[name].astype(at_edge[name].dtype))
        found = {"argmax": expected["argmax"], "dy": dy, "dx": np.full(x.shape, np.nan, np.float32)}
        at_edge = {name: guarded(array, at_end=number == 0)[0] for name, array in found.items()}
        for each in (found, at_edge):
            plan = context.plan_launches(backward, planes.plan(backward, context, settings), "planes")
            plan.run(**each)
        np.testing.assert_array_equal(at_edge["dx"], found["dx"])
        (exact,) = backward.reference({"argmax": found["argmax"], "dy": dy}).values()
        np.testing.assert_allclose(found["dx"], exact, rtol=1e-6, atol=1e-6)


def test_either_result_may_be_skipped_or_added_to() -> None:
    problem = parse("pool max n2 c3 ih9 iw20 kh3 kw3 sh2 sw2", "forward_argmax")
    x = np.random.default_rng(0).standard_normal(problem.arguments()[0].shape).astype(np.float32)
    expected = {name: array.astype("f4") for name, array in problem.reference({"x": x}).items()}
    y, argmax = np.full(expected["y"].shape, 2, np.float32), np.full(expected["y"].shape, 3, np.uint8)
    plan = core.context().plan(problem)
    plan.run(x=x, y=core.accumulate(y), argmax=None)
    np.testing.assert_array_equal(y, expected["y"] + np.float32(2))
    plan.run(x=x, y=None, argmax=core.accumulate(argmax))
    np.testing.assert_array_equal(argmax, expected["argmax"] + 3)


def test_only_maxima_of_small_windows_have_one() -> None:
    with pytest.raises(ProblemError, match=r"\[pool\] got operator average, expected max, which has an argmax"):
        parse("pool average n1 c2 ih5 iw7 kh3 kw3", "backward_argmax")
    for line in ("max n1 c2 ih5 iw7 kh3 kw3", "max n1 c2 ih5 iw7 kh5 kw7"):
        assert parse(f"pool {line}").keeps_argmax
    for line in ("max n1 c2 ih5 iw7 kh7 kw9 ph1 pw1", "max n1 c2 ih30 iw30 kh16 kw16", "average n1 c2 ih5 iw7 kh3 kw3"):
        assert not parse(f"pool {line}").keeps_argmax


def pooled_twice(kept: str = "") -> tuple[Graph, Graph]:
    """Return a graph of two poolings, one of whose results is an output too, and the same with its gradient."""
    first = parse(f"pool max n2 c3 ih19 iw21 kh3 kw3 sh2 sw2{kept}")
    second = parse("pool max n2 c3 ih9 iw10 kh2 kw2")
    nodes = (Node(first, ("x", "y")), Node(second, ("y", "z")))
    x = first.arguments()[0]
    forward = Graph(nodes, (Value("x", x.shape, x.dtype),), ("y", "z"))
    return forward, forward.gradients(("x",), ("z",))


@pytest.mark.parametrize("word", ["", " keep_nan"])
def test_graphs_keep_it_for_their_gradients(word: str) -> None:
    forward, graph = pooled_twice(word)
    assert keep_argmax(forward) is forward
    kept = keep_argmax(graph)
    directions = [node.problem.direction for node in kept.nodes if isinstance(node.problem, PoolProblem)]
    assert directions == ["forward_argmax"] * 2 + ["backward_argmax"] * 2
    assert ("keep_nan" in str(kept.nodes[0].problem)) == bool(word)
    x = np.random.default_rng(3).integers(-2, 3, graph.values["x"].shape).astype(np.float32)
    dz = np.random.default_rng(4).standard_normal(graph.values["z"].shape).astype(np.float32)
    results = []
    for passes in ("", "-argmax"):
        compiled = core.context().compile(graph, passes)
        out = {name: np.full(graph.values[name].shape, np.nan, np.float32) for name in graph.outputs}
        compiled.run({"x": x, "d.z": dz, **out})
        results.append(out)
        assert ("_argmax" in str(compiled.report().algorithms)) == (passes == "")
    for name, got in results[0].items():
        np.testing.assert_array_equal(bits(got), bits(results[1][name]))


def test_a_gradient_of_other_values_searches() -> None:
    """The gradient of a pooling that is not in the graph, or of another one, stays as it is."""
    _, graph = pooled_twice()
    (_, node) = [node for node in graph.nodes if str(node.problem).startswith("pool backward")]
    x, y, dy, dx = node.arguments
    shapes = {name: graph.values[name] for name in (x, y, dy)}
    alone = Graph((node,), tuple(shapes.values()), (dx,))
    assert keep_argmax(alone) is alone


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize(
    "line",
    [
        "n2 c19 ih9 iw8 kh3 kw3 sh2 sw2 ph1 pw1",
        "f16 n2 c8 ih7 iw6 kh3 kw2 sh1 sw2 pw1",
        "n3 c12 iw29 kw3 sw2 pw1 ceil",
    ],
)
def test_channels_last(line: str, machine: str) -> None:
    for words in ("", " keep_nan"):
        problem = core.parse(f"pool forward max {line}{words} layout=nhwc")
        with planning_for(machine) as context:
            check(context, problem, values_of(problem))
            served = context.choose(problem.with_direction("forward_argmax")).algorithm
            assert (served == "pixels_gpu") == (machine != MACHINES[0] or not context.device.is_cpu)


def test_volumes_in_channels_last_have_none() -> None:
    with pytest.raises(ProblemError, match="one or two axes for an argmax in channels last"):
        core.parse("pool forward_argmax max n1 c3 id4 ih5 iw6 kd2 kh3 kw2 layout=nhwc")
