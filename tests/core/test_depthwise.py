"""Depthwise convolution: every implementation in every direction against float64, and within its buffers."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import cpu_fixed, cpu_gradients, cpu_rows, grouped_planes
from clgraft.core.session.context import Context
from tests.core.conv_checks import DIRECTIONS, OUTPUTS, check, random_arrays
from tests.core.guarded_memory import check_within_pages
from tests.problem_sets import problem_lines

LINES = problem_lines("depthwise")
ON_CPU = core.context().device.is_cpu
SHORT = ["grouped_planes", "depthwise_flat"]  # the implementations for short rows
IN_PLACE = [
    "depthwise_fixed",
    "depthwise_gradients",
    *SHORT,
    "depthwise_rows",
    "depthwise",
]  # the implementations for CPU devices
ALGORITHMS = [*IN_PLACE, "depthwise_gpu"] if ON_CPU else ["depthwise_gpu"]
FEW = ["planes-7", "planes-17", "5x5", "stride-2-wide", "stride-3", "dilate-2", "asymmetric-pad-stride", "multiplier-2"]


def serves(context: Context, problem: core.ConvProblem, algorithm: str) -> bool:
    """Whether an implementation takes a problem; what `depthwise` and `depthwise_gpu` decline is said here."""
    taken = problem.ndim <= 2
    if algorithm == "depthwise_gpu":
        taken = taken and not (problem.direction == "backward_filter" and problem.kernel[-1] > 25)
    if algorithm in ("depthwise", "depthwise_gpu"):
        return taken
    planned = {"depthwise_fixed": cpu_fixed, "depthwise_gradients": cpu_gradients, "grouped_planes": grouped_planes}
    if algorithm in planned:
        return _planned(context, problem, planned[algorithm])
    if algorithm == "depthwise_flat":
        return taken and problem.direction == "backward_filter" and _flat(context, problem)
    dense = max(problem.stride) == 1 or (max(problem.stride) == 2 and max(problem.dilate) == 1)
    most = 49 if problem.direction != "backward_filter" else 27 if context.device.vector_width >= 16 else 13
    both = problem.direction != "backward_data" or len(set((1, *problem.stride)[-2:])) == 1
    return taken and dense and both and int(np.prod(problem.kernel)) <= most


def _planned(context: Context, problem: core.ConvProblem, implementation: ModuleType) -> bool:
    """Whether it can be planned: `test_short_rows` and files of an implementation's own pin down what is served."""
    try:
        implementation.plan(problem, context.planner)
    except Declined:
        return False
    return True


def _flat(context: Context, problem: core.ConvProblem) -> bool:
    lanes = context.device.vector_width // (2 if problem.dtype == "float64" else 1)
    size = problem.out_size
    vectors, taps = -(-int(np.prod(size)) // lanes), int(np.prod(problem.kernel))
    most_taps = 27 if context.device.vector_width >= 16 else 13
    masks = vectors * taps * lanes * (8 if problem.dtype == "float64" else 4)
    one_width = max(problem.stride) == 1 and problem.in_size[-1] == problem.out_size[-1]
    fits = taps <= most_taps and masks <= min(12 * 1024, context.device.local_memory // 2)
    return one_width and fits and size[-1] <= lanes * 3 // 4 and int(np.prod(size)) >= lanes


SERVED = [
    (algorithm, direction)
    for algorithm in ALGORITHMS
    for direction in DIRECTIONS
    if algorithm not in IN_PLACE[:4]
    or (algorithm in ("depthwise_gradients", "depthwise_flat")) == (direction == "backward_filter")
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_stands_first(name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    usual = not cpu_fixed.reserved(problem)
    algorithms = [algorithm for algorithm in ALGORITHMS if usual or algorithm != "depthwise_fixed"]
    wanted = next(algorithm for algorithm in algorithms if serves(core.context(), problem, algorithm))
    if name == "batch-0" and direction != "backward_filter":
        wanted = "empty"
    assert core.context().choose(problem).algorithm == wanted


@pytest.mark.skipif(not ON_CPU, reason="made for CPU devices")
def test_short_rows() -> None:
    """Rows of one vector with their padding, of two with few taps: at AVX-512's 16 lanes or others."""
    lanes = core.context().device.vector_width
    for width, kernel, served in (
        (lanes // 2 - 1, 3, 1),
        (lanes - 2, 5, 1),
        (2 * lanes - 1, 3, 1),
        (2 * lanes, 3, 0),
        (lanes - 1, 5, 0),
    ):
        text = f"conv g3 n2 ic3 ih9 iw{width} oc3 kh{kernel} kw{kernel} ph{kernel // 2} pw{kernel // 2}"
        for direction in ("forward", "backward_data"):
            problem = core.parse(text).with_direction(direction)
            assert _planned(core.context(), problem, grouped_planes) == served, text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv g2 n1 ic4 ih5 iw5 oc4 kh3 kw3", "groups 2 are not the 4 input channels"),
        ("conv n1 ic1 ih5 iw5 oc64 kh3 kw3", "64 filters of one channel are a product of matrices"),
        ("conv g2 n1 ic2 id5 ih5 iw5 oc2 kd3 kh3 kw3", "one or two spatial axes"),
    ],
)
def test_declines(text: str, reason: str) -> None:
    for algorithm in ALGORITHMS:
        if algorithm != "grouped_planes":
            with pytest.raises(core.ProblemError, match=f"{algorithm}: .*{reason}"):
                core.context().choose(core.parse(text), algorithm)


@pytest.fixture(scope="module", params=["64 cores", "little local memory", "256-bit vectors"])
def other_device(request: pytest.FixtureRequest) -> Context:
    """A context that plans for a different machine, and runs on this one."""
    context = Context.on(None)
    changes = {
        "64 cores": {"compute_units": 64},
        "little local memory": {"local_memory": 24 * 1024},
        "256-bit vectors": {"vector_width": 8},
    }
    context.device = replace(context.device, **changes[request.param])
    return context


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", FEW)
def test_plans_for_other_machines(other_device: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    for algorithm in ALGORITHMS:
        if serves(other_device, problem, algorithm):
            check(other_device, problem, algorithm)
            check(other_device, problem, algorithm, accumulate=True)


@pytest.mark.skipif(not ON_CPU, reason="the order of rows is that of CPU devices")
def test_planes_larger_than_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned as if the cache were small: rows in the order of memory, few of them at a time."""
    for implementation in (cpu_rows, cpu_gradients):
        monkeypatch.setattr(implementation, "L1_BYTES", 0)
    context, served = Context.on(None), 0
    for line in (
        "conv g5 n3 ic5 ih13 iw53 oc5 kh3 kw3 ph1 pw1 b1",
        "conv g5 n3 ic5 ih14 iw75 oc5 kh3 kw3 sh2 sw2 ph1 pw1",
        "conv g3 n3 ic3 ih13 iw40 oc6 kh3 kw3 ph2 pw2 dh2 dw2",
    ):
        for direction in DIRECTIONS:
            problem = core.parse(line).with_direction(direction)
            for algorithm in ("depthwise_rows", "depthwise_gradients"):
                if serves(context, problem, algorithm):
                    check(context, problem, algorithm)
                    check(context, problem, algorithm, accumulate=True)
                    served += 1
    assert served >= 9


@pytest.mark.skipif(not ON_CPU, reason="tiles of scratch are for CPU devices")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planes_larger_than_scratch(direction: str) -> None:
    """A tile is then a part of a plane's rows, and of a very wide row."""
    context = Context.on(None)
    context.device = replace(context.device, local_memory=16 * 1024)
    for text in ("conv g2 n2 ic2 ih37 iw190 oc2 kh3 kw3 sh3 sw3 ph1 pw1", "conv g3 n1 ic3 iw9001 oc3 kw4 sw2 dw2 pw3"):
        problem = core.parse(text).with_direction(direction)
        check(context, problem, "depthwise")
        check(context, problem, "depthwise", accumulate=True)


@st.composite
def problems(
    draw: st.DrawFn, kernels: st.SearchStrategy[tuple[int, ...]], strides: st.SearchStrategy[int]
) -> core.ConvProblem:
    kernel = draw(kernels)
    ndim = len(kernel)
    stride, dilate = draw(strides), draw(st.integers(1, 3))
    begin, end = (tuple(draw(st.integers(0, 4)) for _ in kernel) for _ in "pq")
    least = [max(dilate * (k - 1) + 1 - p - q, 1) for k, p, q in zip(kernel, begin, end)]
    size = tuple(low + draw(st.integers(0, 60 if axis == ndim - 1 else 14)) for axis, low in enumerate(least))
    channels = draw(st.integers(1, 7))
    return core.ConvProblem(
        direction=draw(st.sampled_from(DIRECTIONS)),
        batch=draw(st.integers(1, 4)),
        in_channels=channels,
        out_channels=channels * draw(st.integers(1, 3)) if channels > 1 else 1,
        groups=channels,
        in_size=size,
        kernel=kernel,
        stride=(stride,) * ndim,
        dilate=(dilate,) * ndim,
        pad_begin=begin,
        pad_end=end,
        bias=draw(st.booleans()),
    )


# Kernels are few where each of them is a program to build.
SOME_KERNELS = st.sampled_from([(3, 3), (2, 3)])
ANY_KERNEL = st.lists(st.integers(1, 6), min_size=1, max_size=2).map(tuple)
HYPOTHESIS = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@HYPOTHESIS
@given(problems(SOME_KERNELS, st.integers(1, 2)), st.booleans())
def test_random_shapes(problem: core.ConvProblem, accumulate: bool) -> None:
    for algorithm in IN_PLACE[1:] if ON_CPU else ALGORITHMS:  # a GPU's kernel has too many builds for a CPU's compiler
        if serves(core.context(), problem, algorithm):
            check(core.context(), problem, algorithm, accumulate=accumulate)


@pytest.mark.skipif(not ON_CPU, reason="the kernels that serve any kernel without a build are for CPU devices")
@HYPOTHESIS
@given(problems(ANY_KERNEL, st.integers(1, 4)), st.booleans())
def test_random_kernels(problem: core.ConvProblem, accumulate: bool) -> None:
    check(core.context(), problem, "depthwise", accumulate=accumulate)


@pytest.mark.parametrize(("algorithm", "direction"), SERVED)
def test_what_is_not_finite_stays_in_its_channel(algorithm: str, direction: str) -> None:
    width = 5 if algorithm in SHORT else 21
    problem = core.parse(f"conv g4 n2 ic4 ih9 iw{width} oc4 kh3 kw3 ph1 pw1").with_direction(direction)
    if algorithm == "depthwise_gradients" and not serves(core.context(), problem, algorithm):
        pytest.skip("depthwise_gradients serves none on this processor")
    arrays = random_arrays(problem)
    plan = core.context().plan(problem, algorithm=algorithm)
    for source in (argument.name for argument in plan.arguments if argument.name in ("x", "dy")):
        given = {argument.name: arrays[argument.name].copy() for argument in plan.arguments if argument.role == "in"}
        given[source][0, 1, 4, 3] = np.nan
        given[source][1, 2, 0, 0] = np.inf
        given[source][1, 2, 8, width - 1] = -np.inf
        result = np.zeros(plan.arguments[-1].shape, np.float32)
        plan.run(**given, **{OUTPUTS[direction]: result})
        if direction == "backward_filter":
            assert np.isnan(result[1]).all()
            assert np.isfinite(result[[0, 3]]).all()
        else:
            broken = np.zeros(result.shape, bool)
            broken[0, 1, 3:6, 2:5] = broken[1, 2, :2, :2] = broken[1, 2, 7:, width - 2 :] = True
            assert np.array_equal(~np.isfinite(result), broken)


@pytest.mark.skipif(not ON_CPU, reason="a GPU works on copies")
@pytest.mark.parametrize("at_end", [False, True], ids=["page-begins", "page-ends"])
@pytest.mark.parametrize("name", [*FEW, "batch-prime", "1d", "f16", "f64-stride-2", "pad-above-kernel", "no-pad"])
@pytest.mark.parametrize("algorithm", IN_PLACE)
def test_touches_nothing_beside_its_arrays(algorithm: str, name: str, at_end: bool) -> None:
    """Each array ends where a page without access begins; a single step over it ends the process."""
    for direction in DIRECTIONS:
        problem = core.parse(LINES[name]).with_direction(direction)
        if not serves(core.context(), problem, algorithm):
            continue
        check_within_pages(problem, algorithm, at_end)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_writes_nothing_beside_its_output(algorithm: str, name: str) -> None:
    for direction in DIRECTIONS:
        problem = core.parse(LINES[name]).with_direction(direction)
        if not serves(core.context(), problem, algorithm):
            continue
        arrays = random_arrays(problem)
        plan = core.context().plan(problem, algorithm=algorithm)
        bound = []
        for argument in plan.arguments[:-1]:
            array = arrays[argument.name]
            bound.append(core.Buffer(array.ctypes.data, array.nbytes, argument.dtype))
        output = plan.arguments[-1]
        room = np.full(output.size + 128, 12345, output.dtype)
        bound.append(core.Buffer(room.ctypes.data + 64 * room.itemsize, output.nbytes, output.dtype))
        plan.execute(bound)
        assert (room[:64] == 12345).all()
        assert (room[-64:] == 12345).all()
