"""Softmax and cross entropy against float64 references."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import CrossEntropyProblem, ProblemError, SoftmaxProblem
from tests.core.pointwise_checks import MACHINES, ROUNDING, planning_for, run
from tests.problem_sets import problem_lines

LINES = problem_lines("softmax")
LOSSES = problem_lines("crossentropy")


def parse(line: str, direction: str) -> core.Problem:
    kind, rest = line.split(" ", 1)
    problem = core.parse(f"{kind} {direction} {rest}")
    assert core.parse(str(problem)) == problem
    return problem


def softmax(x: np.ndarray, log: bool = False) -> np.ndarray:
    """Compute y in float64."""
    return SoftmaxProblem("forward", *x.shape, log).reference({"x": x}, {"scale": 1.0})["y"]


def check(problem: core.Problem, got: np.ndarray, exact: np.ndarray, terms: int, size: float = 0) -> None:
    """Hold a result to the roundings of sums of some terms, joined in vectors; `size` is that of what may cancel."""
    assert got.shape == exact.shape
    arithmetic = ROUNDING["float64" if problem.dtype == "float64" else "float32"]
    largest = max(size, np.abs(exact).max(initial=1e-3))
    allowed = (16 + 2 * terms**0.5) * arithmetic * largest + 2 * ROUNDING[problem.dtype] * np.abs(exact)
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= allowed).all(), f"off by {error.max() / largest:.1e} of the largest"


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("name", ["classes", "segmentation", "few-pixels", "double"])
def test_accumulates_in_place_and_repeats_bit_for_bit(name: str, machine: str) -> None:
    problem = parse(LINES[name], "forward")
    back = parse(LINES[name], "backward")
    rng = np.random.default_rng(1)
    shape = problem.arguments()[0].shape
    x, dy = (rng.standard_normal(shape).astype(problem.dtype) for _ in range(2))
    one = {"scale": 1.0}
    with planning_for(machine) as context:
        for each, given, output, input_name in ((problem, {"x": x}, "y", "x"), (back, {"y": x, "dy": dy}, "dx", "dy")):
            (first,) = run(context, each, given, one).values()
            (again,) = run(context, each, given, one).values()
            assert first.tobytes() == again.tobytes()
            added = np.full_like(first, 2)
            context.plan(each).run(scalars=one, **given, **{output: core.accumulate(added)})
            np.testing.assert_allclose(added, first + 2, rtol=2 * ROUNDING[problem.dtype])
            same = given[input_name].copy()
            context.plan(each).run(scalars=one, **{**given, input_name: same, output: same})
            assert same.tobytes() == first.tobytes()


@pytest.mark.parametrize("machine", MACHINES[:2])
@pytest.mark.parametrize("line", ["n6 c40", "n2 c6 s3", "n1 c6 s20"])
def test_large_numbers_infinities_and_nan(line: str, machine: str) -> None:
    rng = np.random.default_rng(2)
    problem = parse(f"softmax {line}", "forward")
    shape = problem.arguments()[0].shape
    largest = np.finfo(np.float32).max
    x = rng.choice([largest, -largest, 1.0, -np.inf], shape).astype(np.float32)
    x[:, 0] = 1.0
    flat = np.moveaxis(x, 1, 2).reshape(-1, shape[1])
    flat[0], flat[1, 3], flat[2, 5] = -np.inf, np.nan, np.inf
    x = np.moveaxis(flat.reshape(shape[0], shape[2], shape[1]), 2, 1).copy()
    with planning_for(machine) as context, np.errstate(all="ignore"):
        (got,) = run(context, problem, {"x": x}, {"scale": 1.0}).values()
        (log,) = run(context, parse(f"softmax {line} log", "forward"), {"x": x}, {"scale": 1.0}).values()
        expected = softmax(x.astype(np.float64))
    rows = np.moveaxis(got, 1, 2).reshape(-1, shape[1])
    assert np.isnan(rows[:3]).all() and not np.isnan(rows[3:]).any()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert (np.isnan(log) == np.isnan(got)).all() and np.nanmax(log) <= 0


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("line", ["n9 c40", "n2 c6 s37"])
def test_exponentials_for_results_of_16_bits(line: str, dtype: str) -> None:
    """What is excluded is 0 exactly, what stands alone 1, a NaN stays in its row; the rest is rounded correctly."""
    problem = parse(f"softmax {dtype} {line}", "forward")
    shape, kind = problem.arguments()[0].shape, problem.dtype
    x = np.random.default_rng(2).uniform(-95, 0, shape).astype(kind)
    x[0], x[0, 1], x[1, 2], x[1, 4, 0] = -np.inf, 3, -np.inf, np.nan
    context = core.context()
    (got,) = run(context, problem, {"x": x}, {"scale": 1.0}).values()
    (log,) = run(context, parse(f"softmax {dtype} {line} log", "forward"), {"x": x}, {"scale": 1.0}).values()
    assert (got[0, 1] == 1).all() and not got[0, 2:].any() and (log[0, 1] == 0).all()
    assert np.isnan(got[1, :, 0]).all() and np.isnan(log[1, :, 0]).all()
    others = ~np.isnan(got)
    assert others.sum() == got.size - shape[1]
    exact = softmax(x.astype(np.float64))[others]
    error = np.abs(got[others].astype(np.float64) - exact)
    least = {"float16": 2.0**-25, "bfloat16": 2.0**-125}[kind]  # half of the smallest number, and what becomes 0
    assert (error <= 1.02 * ROUNDING[kind] * exact + least).all()


def entropy_data(problem: CrossEntropyProblem) -> dict[str, np.ndarray]:
    """Return probabilities, labels of which some name no class, gradients and counts."""
    rng = np.random.default_rng(3)
    images, channels, pixels = problem.images, problem.channels, problem.pixels
    y = softmax(rng.standard_normal((images, channels, pixels))).astype(problem.dtype)
    label = rng.integers(0, channels, (images, pixels)).astype(problem.dtype)
    label += np.where(label > 0, rng.choice([0, 0.5], label.shape), 0).astype(problem.dtype)
    flat = label.reshape(-1)
    flat[::7], flat[1::11], flat[2::31] = 0, -3, channels
    dy = rng.standard_normal(y.shape).astype(problem.dtype)
    return {"y": y, "label": label, "dy": dy, "counts": np.array([5, 0], np.int32)}


@pytest.mark.parametrize("machine", MACHINES[:3])
@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy_matches_float64(name: str, machine: str) -> None:
    back = parse(LOSSES[name], "backward")
    assert isinstance(back, CrossEntropyProblem)
    given = entropy_data(back)
    scalars = {"ignored": 0.0} if back.ignoring else {}
    smooth = {"scale": 2.5, "smooth": 0.1, **scalars}
    forward, count = back.with_direction("forward"), back.with_direction("count")
    with planning_for(machine) as context:
        inputs = {name: given[name] for name in ("y", "label")}
        found = run(context, forward, {**inputs, "counts": np.full(2, -1, np.int32)}, {"lowest": 1e-30, **scalars})
        counted = run(context, count, {"label": given["label"], "counts": np.full(2, -1, np.int32)}, scalars)
        needed = {a.name: given[a.name] for a in back.arguments() if a.role == "in"}
        (dx,) = run(context, back, needed, smooth).values()
    exact = forward.reference(inputs, {"lowest": 1e-30, **scalars})
    valid, outside = exact["counts"]
    assert outside or given["label"].size < 3
    assert found["counts"].tolist() == counted["counts"].tolist() == [valid, outside]
    check(back, found["loss"], exact["loss"], given["label"].size)
    check(back, dx, back.reference(needed, smooth)["dx"], 1)


@pytest.mark.parametrize("machine", MACHINES[:2])
def test_only_what_is_chosen_is_read(machine: str) -> None:
    """A NaN that is not at a label, or where the label is ignored, stays out of the loss; at a label it goes in."""
    problem = CrossEntropyProblem("forward", 4, 3, ignoring=True)
    y = np.full((4, 3, 1), np.nan, np.float32)
    label = np.array([[1], [2], [9], [0]], np.float32)
    y[0, 1], y[1, 2] = 0.5, 0.25
    back, counts = problem.with_direction("backward"), np.zeros(2, np.int32)
    with planning_for(machine) as context:
        given = {"y": y, "label": label, "counts": counts}
        scalars = {"lowest": 1e-8, "ignored": 0.0}
        (loss, _) = run(context, problem, given, scalars).values()
        np.testing.assert_allclose(loss, [np.log(8)], rtol=1e-6)
        assert counts.tolist() == [3, 1]
        (dx,) = run(context, back, {"y": y, "label": label}, {"scale": 1.0, "smooth": 0.0, "ignored": 0.0}).values()
        assert not dx[3].any() and np.isnan(dx[2]).all() and dx[0, 1] == -0.5
        y[0, 1] = np.nan
        (loss, _) = run(context, problem, given, scalars).values()
        assert np.isnan(loss[0])


@pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")
def test_every_implementation_is_chosen() -> None:
    with planning_for("this one") as context:
        chosen = {context.choose(parse(text, "forward")).algorithm for text in LINES.values()}
        assert chosen == {"vectors", "empty"}


def test_what_a_gpu_is_given() -> None:
    with planning_for("a GPU") as context:
        plan = context.choose(parse(LINES["classes"], "forward"))
        assert plan.algorithm == "rows_gpu" and plan.declined[0][0] == "vectors"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("softmax forward n1", "expected a word cN"),
        ("softmax forward n1 c2 s3 s4", "'s4'"),
        ("softmax sideways n1 c2", "'sideways'"),
        ("crossentropy backward c1", "expected a word nN"),
        ("crossentropy backward n1 c1 heavy", "'heavy'"),
    ],
)
def test_wrong_texts_are_named(text: str, part: str) -> None:
    with pytest.raises(ProblemError) as caught:
        core.parse(text)
    assert str(caught.value).startswith(f"[{text.split()[0]}] got ") and part in str(caught.value)


def test_wrong_numbers_are_named() -> None:
    for kind in (SoftmaxProblem, CrossEntropyProblem):
        for direction, channels, dtype, part in (
            ("sideways", 1, "float32", "direction 'sideways'"),
            ("forward", -1, "float32", "channels -1"),
            ("forward", 1, "int8", "dtype 'int8'"),
        ):
            with pytest.raises(ProblemError, match=part):
                kind(direction, 1, channels, dtype=dtype)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("size", ["n5 c1000", "n3 c999", "n2 c9000", "n7 c12 log"])
def test_rows_at_any_address(size: str, direction: str) -> None:
    """GPUs read four neighbours at once where addresses allow it, with the same bits where they do not."""
    problem = core.parse(f"softmax {direction} {size}")
    rng, results = np.random.default_rng(4), []
    given = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    output = problem.arguments()[-1]
    with planning_for("a GPU") as context:
        plan = context.plan(problem)
        assert plan.algorithm == "rows_gpu"
        for shift in (0, 1):
            arrays = {}
            for name in (*given, output.name):
                block = np.full(output.size + 64, np.nan, output.dtype)
                start = -block.ctypes.data % 64 // block.itemsize + shift
                arrays[name] = block[start : start + output.size].reshape(output.shape)
                if name in given:
                    arrays[name][:] = given[name]
            plan.run(scalars={"scale": 1.5}, **arrays)
            results.append(arrays[output.name])
    assert results[0].tobytes() == results[1].tobytes()
    exact = problem.reference({name: array.astype(np.float64) for name, array in given.items()}, {"scale": 1.5})
    terms = given["x"] if direction == "forward" else given["dy"] if problem.log else given["y"] * given["dy"]
    check(problem, results[0], exact[output.name], problem.channels, float(np.abs(terms).max()))
