"""The gradients of data and weights as one problem: the kernel for both, the problem, the pass of graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.graph import parse_graph
from clgraft.core.graph.passes import join_gradients
from clgraft.core.graph.reference import evaluate
from clgraft.core.session.context import Context
from tests.core.conv_checks import ARITHMETIC, ROUNDING
from tests.core.graphs import sample
from tests.core.guarded_memory import guarded
from tests.core.wide_vectors import wide_context
from tests.problem_sets import problem_lines

LINES = problem_lines("gradients")
IN_TURN = ("5x5-apart", "dilate-2", "multiplier-2", "one-group", "channels-last")
IN_KERNEL = [name for name in LINES if name not in (*IN_TURN, "batch-0")]
SERVES = core.context().serves(core.parse(LINES["planes-56"]), "in_kernel")
only_in_kernel = pytest.mark.skipif(not core.context().device.is_cpu, reason="the kernel is for CPU devices")


def arrays_of(problem: core.GradientsProblem) -> dict[str, np.ndarray]:
    """Return random inputs and NaN for results."""
    given = problem.sample(np.random.default_rng(5))
    return {**given, **{a.name: np.full(a.shape, np.nan, a.dtype) for a in problem.arguments()[3:]}}


def expect_near(problem: core.GradientsProblem, arrays: dict, found: dict, base: dict | None = None) -> None:
    """Hold results to the bound of their own rounding errors, of a sum of products onto `base`."""
    exact = problem.reference(arrays)
    sizes = problem.reference({name: np.abs(arrays[name]) for name in ("x", "w", "dy")})
    for name, result in found.items():
        onto = (base or {}).get(name, np.zeros(1))
        summing = (problem.terms + 3) * ARITHMETIC[problem.dtype] * (sizes[name] + np.abs(onto))
        storing = 2 * ROUNDING[problem.dtype] * (2 * np.abs(exact[name]) + np.abs(onto) + summing)
        wrong = ~(np.abs(result - (exact[name] + onto)) <= summing + storing + (problem.dtype == "float16") * 2.0**-24)
        assert not wrong.any(), f"{problem}: {name} is wrong first at {np.argwhere(wrong)[0]}"


def served(context: Context, name: str) -> core.GradientsProblem:
    problem = core.parse(LINES[name])
    if problem.dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    return problem


@pytest.mark.parametrize("name", [name for name in LINES if name != "batch-0"])
def test_who_serves(name: str) -> None:
    plan = core.context().choose(served(core.context(), name))
    assert (plan.algorithm == "in_kernel") == (SERVES and name not in IN_TURN)


@only_in_kernel
@pytest.mark.parametrize("name", IN_KERNEL)
def test_the_kernel_matches_float64(name: str) -> None:
    problem = served(core.context(), name)
    arrays = arrays_of(problem)
    wide_context().plan(problem, algorithm="in_kernel").run(**arrays)
    expect_near(problem, arrays, {name: arrays[name] for name in ("dx", "dw")})


@pytest.mark.parametrize("name", ["planes-7", "stride-2-31", "planes-17", "f16", "dilate-2"])
def test_adds_and_skips(name: str) -> None:
    """Each result can be overwritten, added to or left out, whatever happens to the other one."""
    problem = served(core.context(), name)
    plan = wide_context().plan(problem)
    arrays = arrays_of(problem)
    rng = np.random.default_rng(6)
    for added in ("dx", "dw"):
        other = "dw" if added == "dx" else "dx"
        base = {added: rng.standard_normal(arrays[added].shape).astype(problem.dtype)}
        result = base[added].copy()
        arrays[other][...] = np.nan
        plan.run(**{**arrays, added: core.accumulate(result)})
        expect_near(problem, arrays, {added: result, other: arrays[other]}, base)
        alone = arrays[other].copy()
        alone[...] = np.nan
        plan.run(**{**arrays, added: None, other: alone})
        assert alone.tobytes() == arrays[other].tobytes()


def test_no_images() -> None:
    problem = core.parse(LINES["batch-0"])
    arrays = arrays_of(problem)
    core.context().plan(problem).run(**arrays)
    assert not arrays["dw"].any()


@only_in_kernel
@pytest.mark.parametrize("at_end", [False, True], ids=["page-begins", "page-ends"])
@pytest.mark.parametrize("name", ["planes-7", "planes-14", "one-image", "pad-above-kernel", "stride-2-31", "f16"])
def test_touches_nothing_beside_its_arrays(name: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    problem = core.parse(LINES[name])
    plan = wide_context().plan(problem, algorithm="in_kernel")
    ordinary = arrays_of(problem)
    at_edge = {key: guarded(array, at_end)[0] for key, array in ordinary.items()}
    plan.run(**ordinary)
    plan.run(**at_edge)
    assert all(np.array_equal(at_edge[key], ordinary[key]) for key in ("dx", "dw"))


@only_in_kernel
@pytest.mark.parametrize("name", ["planes-7", "unusual", "stride-2-31", "planes-56", "5x5-apart"])
def test_plans_for_other_machines(name: str) -> None:
    """Splits of images, and sums of fewer filters at a time."""
    context = Context.on(None)
    for changes in ({"compute_units": 3, "local_memory": 16 * 1024}, {"compute_units": 1}):
        context.device = replace(wide_context().device, **changes)
        problem = core.parse(LINES[name])
        arrays = arrays_of(problem)
        context.plan(problem, algorithm="in_kernel").run(**arrays)
        expect_near(problem, arrays, {name: arrays[name] for name in ("dx", "dw")})


@only_in_kernel
@pytest.mark.parametrize("source", ["x", "dy"])
def test_what_is_not_finite_stays_in_its_channel(source: str) -> None:
    for width in (5, 21):
        problem = core.parse(f"gradients conv forward g4 n2 ic4 ih9 iw{width} oc4 kh3 kw3 ph1 pw1")
        arrays = arrays_of(problem)
        arrays[source][0, 1, 4, 3] = np.nan
        arrays[source][1, 2, 0, 0] = np.inf
        arrays[source][1, 2, 8, width - 1] = -np.inf
        wide_context().plan(problem, algorithm="in_kernel").run(**arrays)
        assert np.isnan(arrays["dw"][1]).all()
        assert np.isfinite(arrays["dw"][[0, 3]]).all()
        broken = np.zeros(arrays["dx"].shape, bool)
        if source == "dy":
            broken[0, 1, 3:6, 2:5] = broken[1, 2, :2, :2] = broken[1, 2, 7:, width - 2 :] = True
        assert np.array_equal(~np.isfinite(arrays["dx"]), broken)


def test_refuses_other_convolutions() -> None:
    for text in ("conv backward_data n1 ic2 ih3 iw3 oc2 kh1 kw1", "conv forward n1 ic2 ih3 iw3 oc2 kh1 kw1 b1"):
        with pytest.raises(core.ProblemError, match="expected a forward convolution without a bias"):
            core.parse(f"gradients {text}")


FORWARD = "conv forward g6 n4 ic6 ih14 iw14 oc6 kh3 kw3 ph1 pw1"
HEAD = "input x[4,6,14,14] f[6,1,3,3]\n"


def test_graphs_join_gradients() -> None:
    """Of each convolution its own, where two share their weights."""
    graph = parse_graph(f"{HEAD}y = x f | {FORWARD}\nz = y f | {FORWARD}\noutput z").gradients(["x", "f"])
    found = join_gradients(graph, lambda problem: True)
    kinds = [node.problem.kind for node in found.nodes]
    assert kinds.count("gradients") == 2 and kinds.count("conv") == 2
    assert join_gradients(graph, lambda problem: False) == graph
    arrays = sample(graph, np.random.default_rng(1))
    expected = evaluate(graph, arrays)
    for name, array in evaluate(found, arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12)
    compiled = core.context().compile(graph)
    assert any("gradients" in text for text, _ in compiled.report().algorithms) == SERVES
    for name, array in compiled.run(arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-4)


def test_graphs_leave_single_gradients_alone() -> None:
    for wrt in (["x"], ["f"]):
        graph = parse_graph(f"{HEAD}y = x f | {FORWARD}\noutput y").gradients(wrt)
        assert join_gradients(graph, lambda problem: True) == graph
