"""Pooling against its float64 reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from clgraft import core
from clgraft.core import PoolProblem, ProblemError
from clgraft.core.operators.pointwise import generate
from clgraft.core.operators.pooling import elements
from clgraft.core.session.context import Context
from tests.core.guarded_memory import guarded
from tests.core.pointwise_checks import ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("pooling")
DIRECTIONS = ("forward", "backward")
ALGORITHMS = (None, "elements")


def parse(line: str, direction: str = "forward") -> PoolProblem:
    problem = core.parse(line.replace("pool", f"pool {direction}", 1))
    assert isinstance(problem, PoolProblem)
    return problem


def forward(problem: PoolProblem, x: np.ndarray) -> np.ndarray:
    """Compute y in float64."""
    return problem.with_direction("forward").reference({"x": x})["y"]


def backward(problem: PoolProblem, dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute dx in float64."""
    return problem.with_direction("backward").reference({"dy": dy, "x": x, "y": y})["dx"]


def data(problem: PoolProblem, seed: int = 0, ties: bool = True) -> dict[str, np.ndarray]:
    """Return inputs of a direction; few different values, so that windows hold their maximum more than once."""
    rng = np.random.default_rng(seed)
    shape = (problem.batch, problem.channels, *problem.in_size)
    if problem.operator == "max" and ties:
        x = rng.integers(-3, 4, shape).astype(problem.dtype)
    else:
        x = rng.standard_normal(shape).astype(problem.dtype)
    if problem.direction == "forward":
        return {"x": x}
    y = forward(problem, x).astype(problem.dtype)
    given = {"x": x, "y": y, "dy": rng.standard_normal(y.shape).astype(problem.dtype)}
    return {argument.name: given[argument.name] for argument in problem.arguments() if argument.role == "in"}


def reference(problem: PoolProblem, arrays: dict[str, np.ndarray]) -> np.ndarray:
    (result,) = problem.reference(arrays).values()
    return result


def check(problem: PoolProblem, got: np.ndarray, exact: np.ndarray) -> None:
    """Hold a result to the roundings of a window's sum; a maximum to none."""
    assert got.shape == exact.shape
    if problem.operator == "max" and problem.direction == "forward":
        np.testing.assert_array_equal(got, exact)
        return
    largest = np.abs(exact).max(initial=1e-3)
    arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
    allowed = 60 * arithmetic * largest + 2 * ROUNDING[problem.dtype] * np.abs(exact)
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= allowed).all(), f"off by {error.max() / largest:.1e} of the largest"


@cache
def context_of_wide_plans() -> Context:
    """Return a context whose plans no other test sees."""
    return Context.on(None)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LINES)
def test_wide_indices(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The elements' kernel alone, planned as for more elements than 32 bits count."""
    monkeypatch.setattr(elements, "SMALL", 0)
    problem = parse(LINES[name], direction)
    arrays = data(problem)
    output = problem.arguments()[-1]
    got = np.full(output.shape, np.nan, output.dtype)
    if got.size:
        context_of_wide_plans().plan(problem, "elements").run(**arrays, **{output.name: got})
    check(problem, got, reference(problem, arrays))


def random_problem(rng: np.random.Generator, direction: str) -> PoolProblem:
    """Return a problem of any shape that is small."""
    ndim = rng.integers(1, 4)
    operator = str(rng.choice(["max", "average", "sum", "lp1", "lp2", "lp3"]))
    kernel = tuple(int(v) for v in rng.integers(1, 6, ndim))
    begin = tuple(int(rng.integers(0, k)) for k in kernel)
    size = tuple(int(k + rng.integers(0, 40 if a == ndim - 1 else 6)) for a, k in enumerate(kernel))
    return PoolProblem(
        direction=direction,
        operator=operator,
        batch=int(rng.integers(1, 3)),
        channels=int(rng.integers(1, 3)),
        in_size=size,
        kernel=kernel,
        stride=tuple(int(v) for v in rng.integers(1, 6, ndim)),
        pad_begin=begin,
        pad_end=tuple(int(rng.integers(0, k + 2)) for k in kernel),
        rounding=str(rng.choice(["floor", "ceil", "ceil_inside"])),
        count_padding=bool(rng.integers(2)),
        dtype=str(rng.choice(["float32", "float32", "float16", "float64"])),
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(25))
def test_random_problems(seed: int, direction: str) -> None:
    problem = random_problem(np.random.default_rng(seed), direction)
    assert core.parse(str(problem)) == problem
    arrays = data(problem, seed)
    (got,) = run(core.context(), problem, arrays).values()
    check(problem, got, reference(problem, arrays))


# windows side by side, with rows and columns that no window holds, and vectors that overlap
SIDE_BY_SIDE = [
    "n2 c3 ih5 iw55 kh2 kw2 sh2 sw2",
    "n2 c3 ih6 iw32 kh2 kw2 sh2 sw2",
    "n2 c3 ih9 iw17 kh2 kw2 sh2 sw2",
    "n1 c5 iw9 kw2 sw2",
]
KINDS = {"max": 4, "average": 4, "sum f64": 1, "lp2": 1, "max f16": 1}  # with how many of the lines


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
@pytest.mark.parametrize("past", [False, True])
def test_windows_side_by_side(past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all directions, within their arrays, added to what is there, and stored past the caches."""
    monkeypatch.setattr(generate, "outgrows_caches", lambda *_: past)
    context, served = Context.on(None), 0
    for kind, count in ({"max": 4} if past else KINDS).items():
        for line in SIDE_BY_SIDE[:count]:
            for direction in (*DIRECTIONS, "forward_argmax", "backward_argmax"):
                try:
                    problem = parse(f"pool {kind} {line}", direction)
                    plan = context.plan(problem, "side_by_side")
                except ProblemError:
                    continue
                check_everywhere(plan, problem)
                served += 1
    assert served == (16 if past else 31)


# windows at every element: vectors that overlap, rows of one vector and of two pairs, padding on one side
SLIDING = [
    "n2 c3 ih28 iw28 kh3 kw3 ph1 pw1",
    "n1 c2 ih5 iw18 kh3 kw5 ph1 pw2 qh2 qw0",
    "n1 c1 ih30 iw67 kh2 kw4 qh1 qw3",
    "n1 c2 ih9 iw60 kh3 kw3 ph1 pw1",
    "n3 c2 iw19 kw3 pw1",
]


@pytest.mark.skipif(core.context().device.vector_width < 16, reason="kernels for vectors of 16 lanes")
@pytest.mark.parametrize("kind", ["max f16", "average", "average bf16", "average f16 count_inside", "sum f16"])
def test_sliding_windows(kind: str) -> None:
    """Within their arrays, and added to what is there."""
    context, served = core.context(), 0
    for line in SLIDING:
        for direction in DIRECTIONS if not kind.startswith("max") else ("forward",):
            problem = parse(f"pool {kind} {line}", direction)
            plan = context.plan(problem, "sliding")
            inputs = problem.sample(np.random.default_rng(5))
            ((name, exact),) = problem.reference(inputs).items()
            for at_end in (False, True):
                given = {key: guarded(array, at_end)[0] for key, array in inputs.items()}
                output, _ = guarded(empty(problem, name), at_end)
                plan.run(**given, **{name: output})
                check(problem, output, exact)
            added = np.full_like(output, 1)
            plan.run(**inputs, **{name: core.accumulate(added)})
            check(problem.with_direction("backward"), added, exact + 1)
            served += 1
    assert served == len(SLIDING) * (1 if kind.startswith("max") else 2)


# rows that are read in fours, in pairs and one by one, tiles of several planes and several tiles of a plane, windows
# that share nothing, padding and strides that four columns are no multiple of
ON_GPUS = [
    "n5 c3 ih12 iw12 kh3 kw3 ph1 pw1",
    "n1 c2 ih35 iw37 kh3 kw3 ph1 pw1",
    "n1 c3 ih14 iw14 kh3 kw3 ph1 pw1",
    "n1 c2 ih56 iw112 kh3 kw3 sh2 sw2 ph1 pw1",
    "n2 c2 ih15 iw24 kh2 kw2 sh2 sw2 ceil",
    "n1 c2 ih7 iw132 kh3 kw3 ph1 pw1 count_inside",
    "n1 c1 ih6 iw264 kh3 kw3 sh2 sw2 ph1 pw1 ceil",
    "n1 c2 ih9 iw20 kh2 kw3 sh4 sw4",
    "n1 c2 ih9 iw24 kh5 kw5 ph2 pw2",
    "n1 c2 ih12 iw21 kh3 kw4 sh3 sw3 ph1 pw2",
]
KINDS_ON_GPUS = {"max f16": 10, "average f16": 10, "max": 4, "average": 4, "max bf16": 3, "max f64": 2, "sum f64": 2}


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, count in KINDS_ON_GPUS.items() for line in ON_GPUS[:count]]
)
def test_windows_gpu_in_all_directions(kind: str, line: str) -> None:
    """Within their arrays, at any address, and added to what is there."""
    with planning_for("a GPU") as context:
        for direction in (*DIRECTIONS, "forward_argmax", "backward_argmax") if "max" in kind else DIRECTIONS:
            problem = parse(f"pool {kind} {line}", direction)
            check_everywhere(context.plan(problem, "windows_gpu"), problem)


# one to eight vectors of 2 to 16 lanes, with and without a last one that overlaps; work-items of many planes, of which
# the last one has fewer than a vector's lanes, and fewer planes than lanes in all
SMALL_WHOLE_PLANES = [
    "average n3 c113 ih7 iw7 kh7 kw7",
    "average n1 c5 ih7 iw7 kh7 kw7",
    "sum n1 c16 ih4 iw4 kh4 kw4",
    "lp2 n1 c131 ih8 iw8 kh8 kw8",
    "max n7 c111 ih3 iw11 kh3 kw11",
    "max f16 n2 c37 ih10 iw12 kh10 kw12",
    "average bf16 n1 c523 ih4 iw5 kh4 kw5",
    "lp3 f64 n3 c43 ih1 iw29 kh1 kw29",
    "average n1 c67 ih2 iw3 kh2 kw3",
    "sum n1 c35 ih8 iw16 kh8 kw16",
]


@pytest.mark.parametrize("machine", ["narrow vectors, many cores", "vectors of 8", "vectors of 16"])
@pytest.mark.parametrize("line", SMALL_WHOLE_PLANES)
def test_small_whole_planes(line: str, machine: str) -> None:
    """Several are joined at once, and the last ones of a work-item again with planes in front of them."""
    with planning_for(machine) as context:
        for direction in ("forward", "forward_argmax") if line.startswith("max") else ("forward",):
            problem = parse(f"pool {line}", direction)
            check_everywhere(context.plan(problem, "whole"), problem)


WHOLE_ON_GPUS = [
    "average f16 n3 c45 ih7 iw7 kh7 kw7",
    "max f16 n2 c35 ih7 iw7 kh7 kw7",
    "max n2 c9 ih14 iw14 kh14 kw14",
    "average bf16 n1 c3 ih16 iw16 kh16 kw16",
    "lp2 n2 c37 ih5 iw5 kh5 kw5",
    "max bf16 n1 c131 ih3 iw3 kh3 kw3",
    "sum f64 n2 c9 ih4 iw9 kh4 kw9",
]


@pytest.mark.parametrize("line", WHOLE_ON_GPUS)
def test_small_whole_planes_gpu(line: str) -> None:
    """Several of them in one work-group, the last of which has fewer."""
    with planning_for("a GPU") as context:
        for direction in ("forward", "forward_argmax") if line.startswith("max") else ("forward",):
            problem = parse(f"pool {line}", direction)
            (launch,) = context.choose(problem).launches.launches
            assert launch.kernel.function_name == "pool_whole_staged"
            check_everywhere(context.plan(problem, "whole"), problem)


@pytest.mark.parametrize("kind", ["average", "sum f64", "average f16", "sum bf16"])
@pytest.mark.parametrize("size", ["ih1 iw1 kh1 kw1", "ih1 iw3 kh1 kw3", "ih3 iw3 kh3 kw3", "ih2 iw5 kh2 kw5"])
def test_gradients_of_small_whole_planes_gpu(size: str, kind: str) -> None:
    """A work-item's elements are of two planes at most, whatever the planes' size."""
    with planning_for("a GPU") as context:
        problem = parse(f"pool {kind} n3 c7 {size}", "backward")
        (launch,) = context.choose(problem).launches.launches
        assert launch.kernel.function_name == "pool_whole_spread"
        check_everywhere(context.plan(problem, "whole"), problem)


def check_everywhere(plan: core.Plan, problem: PoolProblem) -> None:
    """Hold a problem's results to the reference at both ends of their memory, at odd addresses, and added."""
    inputs = problem.sample(np.random.default_rng(3))
    exact = problem.reference(inputs)
    for place in (lambda a: guarded(a, False)[0], lambda a: guarded(a, True)[0], at_an_odd_address):
        given = {name: place(array) for name, array in inputs.items()}
        outputs = {name: place(empty(problem, name)) for name in exact}
        plan.run(**given, **outputs)
        for name, array in outputs.items():
            check(problem, array, exact[name])
    added = {name: np.full_like(array, 1) for name, array in outputs.items()}
    plan.run(**inputs, **{name: core.accumulate(array) for name, array in added.items()})
    for name, array in added.items():
        check(problem.with_direction("backward"), array, exact[name] + 1)


def at_an_odd_address(array: np.ndarray) -> np.ndarray:
    """Return a copy of which no two elements lie where both can be read together."""
    copied = np.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
    copied[...] = array
    return copied


def empty(problem: PoolProblem, name: str) -> np.ndarray:
    """Return an array for a result, full of what no result is."""
    (argument,) = (argument for argument in problem.arguments() if argument.name == name)
    return np.full(argument.shape, 99 if argument.dtype == "uint8" else np.nan, argument.dtype)


SPECIAL = ["kh2 kw2 sh2 sw2", "kh3 kw3 ph1 pw1", "kh3 kw3 sh2 sw2 ph1 pw1 ceil", "kh8 kw20", "kh2 kw4 sw3"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("kept", ["", " keep_nan"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("window", SPECIAL)
def test_not_a_number_is_no_maximum_or_is_kept(window: str, algorithm: str | None, kept: str, dtype: str) -> None:
    problem = parse(f"pool max {dtype} n2 c3 ih8 iw20 {window}{kept}")
    rng = np.random.default_rng(1)
    x = rng.choice([np.nan, -np.inf, 1.0, 2.0, np.inf], (2, 3, 8, 20), p=[0.4, 0.3, 0.1, 0.1, 0.1]).astype(
        problem.dtype
    )
    x[0, 0], x[0, 1] = np.nan, -np.inf
    y = forward(problem, x).astype(problem.dtype)
    assert np.isnan(y).any() == bool(kept)
    got = np.zeros(y.shape, problem.dtype)
    context = core.context()
    context.plan(problem, algorithm).run(x=x, y=got)
    np.testing.assert_array_equal(got, y)
    dy = rng.standard_normal(y.shape).astype(problem.dtype)
    dx = np.full(x.shape, np.nan, problem.dtype)
    back = problem.with_direction("backward")
    context.plan(back, algorithm).run(x=x, y=y, dy=dy, dx=dx)
    check(back, dx, backward(problem, dy, x, y))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_tie_goes_to_the_first(algorithm: str | None) -> None:
    problem = parse("pool max n1 c1 ih4 iw6 kh2 kw3 sh2 sw3", "backward")
    dx = np.full((1, 1, 4, 6), np.nan, "float32")
    x, y, dy = np.zeros_like(dx), np.zeros((1, 1, 2, 2), "float32"), np.full((1, 1, 2, 2), 5, "float32")
    core.context().plan(problem, algorithm).run(x=x, y=y, dy=dy, dx=dx)
    expected = np.zeros_like(dx)
    expected[0, 0, ::2, ::3] = 5
    np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("operator", ["max", "average", "sum", "lp1", "lp2", "lp3"])
def test_gradients_are_differences(operator: str) -> None:
    """Central differences in float64."""
    problem = parse(f"pool {operator} f64 n1 c2 ih5 iw7 kh3 kw2 sh2 ph1 pw1")
    rng = np.random.default_rng(4)
    x = 1 + rng.random((1, 2, 5, 7))
    (y,) = run(core.context(), problem, {"x": x}).values()
    dy, along, h = rng.standard_normal(y.shape), rng.standard_normal(x.shape), 1e-6
    back = problem.with_direction("backward")
    given = {"x": x, "y": y, "dy": dy}
    needed = {argument.name: given[argument.name] for argument in back.arguments() if argument.role == "in"}
    (dx,) = run(core.context(), back, needed).values()
    high, low = (run(core.context(), problem, {"x": x + step * along})["y"] for step in (h, -h))
    np.testing.assert_allclose((dx * along).sum(), ((high - low) * dy).sum() / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
def test_every_implementation_is_chosen() -> None:
    with planning_for("this one") as context:
        chosen = {context.choose(parse(text, way)).algorithm for text in LINES.values() for way in DIRECTIONS}
        wide = {"sliding"} if context.device.vector_width >= 16 else set()
        assert chosen == {"whole", "side_by_side", "planes", "elements", "empty"} | wide


def test_what_a_gpu_is_given() -> None:
    with planning_for("a GPU") as context:
        chosen = {context.choose(parse(text, way)).algorithm for text in LINES.values() for way in DIRECTIONS}
        assert chosen == {"whole", "windows_gpu", "elements", "empty"}


@pytest.mark.parametrize(
    ("line", "out_size"),
    [
        ("ih7 iw7 kh2 kw2 sh2 sw2", (3, 3)),
        ("ih7 iw7 kh2 kw2 sh2 sw2 ceil", (4, 4)),
        ("ih7 iw7 kh2 kw2 sh2 sw2 ceil_inside", (4, 4)),
        ("ih7 iw7 kh2 kw2 sh2 sw2 ph1 pw1 ceil", (5, 5)),
        ("ih7 iw7 kh2 kw2 sh2 sw2 ph1 pw1 ceil_inside", (4, 4)),
        ("ih3 iw3 kh2 kw2 sh3 sw3 ceil_inside", (2, 2)),
        ("ih3 iw3 kh2 kw2 sh3 sw3 ph1 ceil_inside", (2, 1)),
        ("ih1 iw2 kh2 kw3 sh2 sw2 ceil_inside", (1, 1)),
    ],
)
def test_number_of_windows(line: str, out_size: tuple[int, ...]) -> None:
    assert parse(f"pool max n1 c1 {line}").out_size == out_size


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pool forward median n1 c1 iw3 kw3", "'median'"),
        ("pool forward n1 c1 iw3 kw3", "operator"),
        ("pool forward max n1 c1 kw3", "expected iw"),
        ("pool forward max n1 c1 iw3", "kwN"),
        ("pool forward max n1 c1 iw3 kw4", "at most the padded input (3)"),
        ("pool forward max n1 c1 iw3 kw2 pw2", "pad_begin (2,), expected less than the kernel"),
        ("pool forward max n1 c1 iw3 kw2 sw0", "stride"),
        ("pool forward max n1 c1 iw3 kw2 kh2", "['kh']"),
        ("pool forward max n1 n1 c1 iw3 kw2", "'n1'"),
        ("pool forward max n1 c1 iw0 kw1", "in_size"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith("[pool] got ")
    assert part in str(caught.value)
