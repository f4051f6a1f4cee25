"""Programs per element: text, errors, values against float64 on all kinds of machines, write modes, accuracy."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from clgraft import core
from clgraft.core import PointwiseProblem, ProblemError, Reduction
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("pointwise")
SCALARS = {"low": -0.5, "high": 0.25, "a": 1.5, "b": -0.25}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def truths(x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    p, q = x > 0, z > 0
    return p, (p & q).astype(int) + (p | ~q), np.where(p == q, 1.5, -1e-3)


def several_folds(x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    t = x * z
    return t, (t * t).sum((0, 2)), t.max(1), t.sum((0, 2), keepdims=True)


def multiply(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    return x * z


def total(*axes: int) -> Callable[..., np.ndarray]:
    return lambda x: x.sum(axes or None)


# what each line means, in numpy
MEANING: dict[str, Callable[..., Any]] = {
    "one": lambda x: x + 1,
    "scalar-shape": lambda x, z: x - z,
    **dict.fromkeys(("short", "one-vector", "ragged", "long"), relu),
    **dict.fromkeys(("half", "double", "half-short", "channels-last", "channels-last-wide", "ones", "empty"), multiply),
    "two-outputs": lambda x: (x * x + 1, x**3),
    "output-read-again": lambda x: (2 * x + 1, (2 * x + 1) ** 2 - x),
    "truth-values": truths,
    "numbers-are-real": lambda x: 0.5 * x + 7,
    "functions": lambda x, z: (x * z + np.hypot(x, z), np.clip(x, -0.5, np.abs(z)), np.maximum(x, z)),
    "scalars": lambda x: np.clip(x, SCALARS["low"], SCALARS["high"]),
    "channels": lambda x, z, b: x * z + b,
    "outer": lambda x, z: x - z,
    "crossed": lambda x, z, b: x * z - b,
    "sum-all": total(),
    "sum-nothing": total(0),
    "sum-to-nothing": total(1),
    "greatest-of-nothing": lambda x: np.full(5, -np.inf),
    "sum-pixels": total(2, 3),
    "sum-channels": total(0, 2, 3),
    "sum-long-channels": total(0, 2, 3),
    **dict.fromkeys(("sum-batch", "sum-tall", "sum-tall-thin"), total(0)),
    **dict.fromkeys(("sum-last-short", "sum-middle", "half-sum"), total(1)),
    "sum-alternate": total(0, 2, 4),
    "sum-alternate-kept": total(1, 3),
    "greatest": lambda x: x.max((0, 2)),
    "least": lambda x: x.min(1),
    "product": lambda x: x.prod(1),
    "given-fold": lambda x: (np.abs(x).max(1), np.sqrt((x * x).sum(1))),
    "different-folds": several_folds,
    "unbroadcast": lambda x, z: (x * z).sum((0, 2))[:, None],
    "unused-input": lambda x, z: (np.broadcast_to(z, (5, 3, 40)), 5 * x.sum()),
    "factors": lambda x, old: SCALARS["a"] * x + (SCALARS["b"] + 1) * old,
    "factors-folded": lambda x, old: SCALARS["a"] * x.sum(1) + (SCALARS["b"] + 1) * old,
    "factors-double": lambda x, old: 0.5 * x.sum(0) - 2 * old,
}


def test_every_line_has_a_meaning() -> None:
    assert set(LINES) == set(MEANING)


@pytest.mark.parametrize("name", LINES)
def test_text_is_read_back(name: str) -> None:
    problem = core.parse(LINES[name])
    assert core.parse(str(problem)) == problem
    assert hash(core.parse(str(problem))) == hash(problem)


def values(problem: PointwiseProblem, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs, and old outputs where they are read."""
    rng = np.random.default_rng(seed)
    wanted = [argument for argument in problem.arguments() if argument.role != "out"]
    return {a.name: np.asarray(rng.standard_normal(a.shape), a.dtype) for a in wanted}


def close(result: np.ndarray, exact: Any, folded: int, scale: float, dtype: str) -> None:
    """Hold a result to a few roundings, and a sum to as many as a blocked sum of `folded` terms has."""
    roundings = 8 + 2 * min(folded, 70)
    arithmetic = ROUNDING["float32" if dtype == "float16" else dtype]
    allowed = roundings * arithmetic * (np.abs(exact) + scale) + 2 * ROUNDING[dtype] * np.abs(exact)
    with np.errstate(invalid="ignore"):
        good = (np.abs(result.astype(np.float64) - exact) <= allowed) | (result == exact)
    assert result.shape == np.shape(exact)
    assert good.all()


def check(problem: PointwiseProblem, name: str, arrays: dict[str, np.ndarray], results: dict[str, np.ndarray]) -> None:
    """Hold results to what a line means in numpy."""
    meant = MEANING[name](*(array.astype(np.float64) for array in arrays.values()))
    meant = meant if isinstance(meant, tuple) else (meant,)
    assert len(meant) == len(results)
    folded = np.prod(problem.common_shape, dtype=int) if any(problem.reductions) else 0
    for result, exact in zip(results.values(), meant):
        close(result, exact, folded, 3 * np.sqrt(folded) + 3 * (name == "functions"), problem.dtype)


def scalars_of(problem: PointwiseProblem) -> dict[str, float]:
    return {name: SCALARS[name] for name in problem.scalars()}


@pytest.mark.parametrize("name", LINES)
def test_references_are_numpys(name: str) -> None:
    """The reference that kernels are held to (see `test_every_run`)."""
    problem = core.parse(LINES[name])
    assert isinstance(problem, PointwiseProblem)
    arrays = values(problem)
    check(problem, name, arrays, problem.reference(arrays, scalars_of(problem)))


@pytest.mark.parametrize("name", list(LINES)[3::5])
def test_64_bit_indices(name: str) -> None:
    problem = core.parse(LINES[name])
    assert isinstance(problem, PointwiseProblem)
    arrays = values(problem)
    given = {argument: array.copy() for argument, array in arrays.items()}  # what is read and written changes
    with planning_for(MACHINES[3]) as context:
        check(problem, name, arrays, run(context, problem, given, scalars_of(problem)))


@settings(max_examples=12)
@given(
    shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=19),
    folds=st.lists(st.booleans(), min_size=4, max_size=4),
    machine=st.sampled_from(MACHINES[:2]),
)
def test_broadcasting_follows_numpy(shapes: Any, folds: list[bool], machine: str) -> None:
    first, second = shapes.input_shapes
    ndim = len(shapes.result_shape)
    axes = tuple(axis for axis in range(ndim) if folds[axis])
    reductions = (None, Reduction("sum", axes) if axes else None, Reduction("sum", shape=first))
    problem = PointwiseProblem((first, second), "y0 = x0 - 2*x1; y1 = y0; y2 = y0;", reductions)
    assert core.parse(str(problem)) == problem
    arrays = {name: np.asarray(np.round(8 * array), "float32") for name, array in values(problem).items()}
    exact = arrays["x0"] - 2 * arrays["x1"]
    with planning_for(machine) as context:
        results = run(context, problem, arrays)
    # whole numbers: every order of summing is exact
    np.testing.assert_array_equal(results["y0"], exact)
    np.testing.assert_array_equal(results["y1"], exact.sum(axes))
    lost = tuple(range(ndim - len(first))) + tuple(a for a in range(ndim - len(first), ndim) if first[a - ndim] == 1)
    np.testing.assert_array_equal(results["y2"], exact.sum(lost, keepdims=True).reshape(first))


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_write_modes(machine: str) -> None:
    problem = core.parse("pointwise x0[6,50] y1=sum[0] y2=sum[1] y3=max : y0 = 2*x0; y1 = x0; y2 = x0; y3 = x0")
    x = values(problem)["x0"]
    exact = (2 * x, x.sum(0), x.sum(1), x.max())
    with planning_for(machine) as context:
        plan = context.plan(problem)
    for kept in range(4):
        outputs = [np.full(np.shape(e), 10, "float32") for e in exact]
        given: dict[str, Any] = {f"y{i}": None if i != kept else core.accumulate(outputs[i]) for i in range(4)}
        plan.run(x0=x, **given)
        for i in range(4):
            np.testing.assert_allclose(outputs[i], exact[i] + 10 if i == kept else 10, rtol=1e-5)


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 50_001])
def test_in_place(size: int, machine: str) -> None:
    problem = PointwiseProblem(((size,), (1,)), "real t = x0 + x1; y0 = t * t + x0;")
    arrays = values(problem)
    exact = (arrays["x0"].astype("float64") + arrays["x1"]) ** 2 + arrays["x0"]
    with planning_for(machine) as context:
        run(context, problem, {**arrays, "y0": arrays["x0"]})
    np.testing.assert_allclose(arrays["x0"], exact, rtol=1e-5, atol=1e-6)


def test_fold_may_read_what_another_output_overwrites() -> None:
    problem = core.parse("pointwise x0[40,50] y1=sum[1] : y0 = 0 * x0; y1 = x0")
    x = values(problem)["x0"]
    exact = x.sum(1)
    np.testing.assert_allclose(run(core.context(), problem, {"x0": x, "y0": x})["y1"], exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_memory_aligned_to_its_elements_only(dtype: str) -> None:
    for size in (40, 1000):
        whole, target = np.zeros(size + 8, dtype), np.full(size + 8, 9, dtype)
        for shift in (1, 3, 5):
            x, y = whole[shift : shift + size], target[shift + 1 : shift + 1 + size]
            x[:] = np.arange(size) % 100
            run(core.context(), PointwiseProblem(((size,),), "y0 = x0 + 1;", dtype=dtype), {"x0": x, "y0": y})
            np.testing.assert_array_equal(y, x + 1)
            assert target[shift] == 9
            assert target[shift + 1 + size] == 9
            target[:] = 9


@pytest.mark.parametrize("machine", MACHINES[:3])
@pytest.mark.parametrize("axes", [(0, 1), (0,), (1,)])
def test_long_sums_are_as_accurate_as_numpys(axes: tuple[int, ...], machine: str) -> None:
    x = np.random.default_rng(0).random((1_000, 2_003), "float32") + 1
    if axes == (0,):
        x = np.ascontiguousarray(x.reshape(-1)[: 100_000 * 20].reshape(100_000, 20))
    exact = x.sum(axes, dtype="float64")
    with planning_for(machine) as context:
        result = run(context, PointwiseProblem((x.shape,), "y0 = x0;", (Reduction("sum", axes),)), {"x0": x})["y0"]
    # pairwise sums of so many terms of one sign are good to about log2(n) / 2 roundings
    assert (np.abs(result - exact) / exact).max() < 12 * ROUNDING["float32"]


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_nan_and_infinity(machine: str) -> None:
    x = np.array([[np.nan, 1, 2] * 20, [np.inf, -np.inf, 0] * 20, [-np.inf] * 60], "float32")
    problem = core.parse("pointwise x0[3,60] y0=max[1] y1=min[1] y2=sum[1] : y0 = x0; y1 = x0; y2 = x0")
    with planning_for(machine) as context:
        results = run(context, problem, {"x0": x})
    with np.errstate(invalid="ignore"):
        for name, exact in (("y0", x.max(1)), ("y1", x.min(1)), ("y2", x.sum(1))):
            np.testing.assert_array_equal(results[name], exact)


ERRORS = {
    "y0 = x0 + z": "the name 'z'",
    "y0 = x2": "the name 'x2'",
    "y0 = (x0 + 1": "its end",
    "y0 = x0 + 1)": "')'",
    "y0 = x0 +": "its end",
    "y0 = x0 x1": "'x1'",
    "y1 = x0": "no assignment to y0",
    "y0 = x0; y2 = x0": "no assignment to y1",
    "": "no assignment to y0",
    "x0 = x1": "an assignment to x0",
    "y0 = x0; exp = x1": "an assignment to exp",
    "t = x0; y0 = t": "'real t = ...'",
    "real t = x0; real t = x1; y0 = t": "a second declaration of 't'",
    "y0 = y1; y1 = x0": "the name 'y1'",
    "y0 += x0": "y0 +=",
    "y0 = foo(x0)": "the function 'foo'",
    "y0 = pow(x0)": "1 arguments of pow",
    "y0 = x0 % 2": "'% 2'",
    'y0 = x0; asm("nop")': "'\"nop\")'",
    "y0 = x0; }": "'}'",
    "y0 = x0 // 2": "'/'",
    "y0 = x0[1]": "'[1]'",
    "y0 = 1.2.3": "'1.2.3'",
}


@pytest.mark.parametrize("expression", ERRORS)
def test_wrong_expressions_are_named(expression: str) -> None:
    with pytest.raises(ProblemError) as caught:
        PointwiseProblem(((4,), (4,)), expression)
    assert str(caught.value).startswith("[pointwise] got ")
    assert ERRORS[expression] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("pointwise x0[3] x1[4] : y0 = x0", "broadcasts"),
        ("pointwise x0[3] x2[3] : y0 = x0", "without gaps"),
        ("pointwise x0[3]", "' : '"),
        ("pointwise f8 x0[3] : y0 = x0", "word 'f8'"),
        ("pointwise x0[3] y0=mean : y0 = x0", "'mean'"),
        ("pointwise x0[3] y0=sum[1] : y0 = x0", "axes (1,)"),
        ("pointwise x0[3,3] y0=sum[0,-2] : y0 = x0", "axes (0, -2)"),
        ("pointwise x0[3] y0[2]=sum : y0 = x0", "shape (2,)"),
        ("pointwise x0[3] y0=fold{a}{0} : y0 = x0", "both a and b"),
        ("pointwise x0[3] y0=fold : y0 = x0", "combine and identity"),
        ("pointwise x0[3] y1=sum : y0 = x0", "2 reductions"),
        ("pointwise x0[3] scalars{x1} : y0 = x0", "'x1'"),
        ("pointwise x0[3] scalars{exp} : y0 = x0", "'exp'"),
        ("pointwise x0[3] alpha{q} : y0 = x0", "'q'"),
        ("pointwise x0[3] alpha{q : y0 = x0", "brace"),
        ("pointwise : y0 = 1", "at least x0"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith("[pointwise] got ")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "positive"),
    [
        ("x0[9] x1[9] : y0 = x0 > 0 ? x1 : 0;", ()),
        ("x0[900] : y0 = log(x0);", (0,)),
        ("x0[8,90] x1[8,1] x2[90] scalars{eps} : y0 = x0 * rsqrt(x1 + eps) + x2;", (1,)),
        ("x0[900] x1[900] : y0 = sqrt(x0) * pow(x1, 1.5);", (0, 1)),
        ("x0[900] x1[900] y0=sum[0] y1=sum[0] : y0 = x1 * acos(x0); y1 = atanh(x0);", (0,)),
    ],
)
def test_samples_have_finite_results(text: str, positive: tuple[int, ...]) -> None:
    """Inputs of roots and logarithms are positive, and the others normal numbers."""
    problem = core.parse(f"pointwise {text}")
    sample = problem.sample(np.random.default_rng(5))
    assert all(np.isfinite(value).all() for value in problem.reference(sample).values())
    assert tuple(i for i in range(len(problem.inputs)) if (sample[f"x{i}"] > 0).all()) == positive
    plain = PointwiseProblem(problem.inputs, "y0 = " + " + ".join(f"x{i}" for i in range(len(problem.inputs))))
    usual = plain.sample(np.random.default_rng(5))
    assert positive or all(np.array_equal(usual[name], value) for name, value in sample.items())


def test_samples_where_nothing_helps_are_normal_numbers() -> None:
    sample = core.parse("pointwise x0[900] : y0 = x0 > 1 ? x0 : NAN;").sample(np.random.default_rng(5))
    assert (sample["x0"] < 0).any()


def test_kernels_are_shared_between_shapes() -> None:
    context = core.context()
    for size in (1000, 1003):
        run(context, PointwiseProblem(((size,),), "y0 = 3 * x0;"), {"x0": np.ones(size, "float32")})
    before = len(context.programs)
    run(context, PointwiseProblem(((40, 51),), "y0 = 3 * x0;"), {"x0": np.ones((40, 51), "float32")})
    assert len(context.programs) == before


def test_kernels_are_shared_between_broadcasts(context, monkeypatch) -> None:
    """Operands that are broadcast on other axes, of other numbers of axes, need no other program on CPUs."""
    if not context.device.is_cpu:
        pytest.skip("test_pointwise_gpu.py has those of GPUs")
    shapes = [
        ((64, 1), (3, 64, 40)),
        ((1, 1), (1, 7, 33)),
        ((5, 1), (2, 5, 100)),
        ((4, 1, 1), (4, 3, 50)),
        ((4, 1, 1, 1), (2, 4, 3, 7, 9)),
        ((1, 40), (3, 64, 40)),
        ((40,), (64, 40)),
    ]
    keys = set()
    for small, large in shapes:
        problem = PointwiseProblem((large, small), "y0 = x0 * x1;")
        keys |= {launch.kernel.key for launch in context.choose(problem).launches.launches}
        x, w = np.random.default_rng(3).standard_normal((2, *large)).astype("float32")
        w = np.ascontiguousarray(w[tuple(slice(0, size) for size in (1,) * (len(large) - len(small)) + small)])
        run(context, problem, {"x0": x, "x1": w.reshape(small)})
    assert len(keys) == 1


def test_kernels_of_three_operands_are_shared_between_broadcasts(context, rng) -> None:
    """As of two operands, whichever of them walk the innermost axis."""
    if not context.device.is_cpu:
        pytest.skip("test_pointwise_gpu.py has those of GPUs")
    keys = set()
    for shapes in (
        ((3, 5, 40), (5, 1), (5, 1)),
        ((3, 5, 41), (5, 41), (5, 1)),
        ((5, 1), (3, 5, 37), (37,)),
        ((1, 5, 1), (3, 1, 1), (3, 5, 33)),
        ((6, 1, 39), (1, 1, 39), (7, 39)),
    ):
        problem = PointwiseProblem(shapes, "y0 = x0 * x1 - x2;")
        keys |= {launch.kernel.key for launch in context.choose(problem).launches.launches}
        x, w, b = (rng.standard_normal(shape).astype("float32") for shape in shapes)
        got = run(context, problem, {"x0": x, "x1": w, "x2": b})["y0"]
        np.testing.assert_allclose(got, x.astype("float64") * w - b, rtol=1e-6, atol=1e-6)
    assert len(keys) == 1
