"""Dense layers against float64: every direction, by every implementation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core import DenseProblem, ProblemError
from clgraft.core.operators.dense import cpu
from clgraft.core.session.context import Context
from tests.core.rounding_bounds import run_to_bound
from tests.problem_sets import problem_lines

LINES = problem_lines("dense")
OUTPUTS = {"forward": "y", "backward_data": "dx", "backward_weight": "dw", "backward_bias": "db"}


def check(
    context: core.Context, problem: DenseProblem, algorithm: str | None, accumulate: bool = False, seed: int = 0
) -> np.ndarray:
    """Run a problem into NaN, or onto random numbers, and hold every element to the bound of its rounding errors."""
    rng = np.random.default_rng(seed)
    n, i, o = problem.batch, problem.inputs, problem.outputs
    shapes = {"x": (n, i), "w": (i, o) if problem.transposed else (o, i), "b": (o,), "dy": (n, o)}
    arrays = {name: rng.standard_normal(shape).astype(problem.dtype) for name, shape in shapes.items()}
    return run_to_bound(context, problem, arrays, algorithm, rng if accumulate else None)


@pytest.mark.parametrize("name", ["batch-17", "batch-64", "batch-67", "f16-batch-20"])
def test_small_batches_kernel_serves_large_ones(context, name: str) -> None:
    if not context.device.is_cpu:
        pytest.skip("the kernel is for CPU devices")
    check(context, core.parse(LINES[name]), "cpu")


def fresh_context(**changes: int) -> Context:
    """Return a context without plans, of this device with changes."""
    context = Context.on(None)
    context.device = replace(context.device, **changes)
    return context


@pytest.mark.parametrize("batch", [1, 5, 13])
@pytest.mark.parametrize("kib", [cpu.SUMS_KIB, 1])
def test_sums_along_columns_in_blocks(context, monkeypatch, batch: int, kib: int) -> None:
    """Columns are several blocks of sums, and rows several chunks of weights."""
    if not context.device.is_cpu:
        pytest.skip("the kernel is for CPU devices")
    monkeypatch.setattr(cpu, "SUMS_KIB", kib)
    monkeypatch.setattr(cpu, "CHUNK_BYTES", 16 * 1024)
    problem, other = DenseProblem("backward_data", batch, 5003, 101), fresh_context()
    (launch,) = other.choose(problem, "cpu").launches.launches
    assert launch.kernel.function_name == "dense_columns" and launch.global_size[0] > 1
    check(other, problem, "cpu")
    check(other, problem, "cpu", accumulate=True)


@pytest.fixture(scope="module", params=["64 cores", "256-bit vectors", "little local memory"])
def other_device(request: pytest.FixtureRequest) -> Context:
    """A context that plans for a different machine, and runs on this one."""
    changes = {
        "64 cores": {"compute_units": 64},
        "256-bit vectors": {"vector_width": 8},
        "little local memory": {"local_memory": 64 * 1024},
    }
    return fresh_context(**changes[request.param])


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_weight"])
@pytest.mark.parametrize("name", ["batch-1", "batch-3", "batch-8", "batch-67", "long-sum", "transposed-batch-33"])
def test_plans_for_other_machines(other_device: Context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    check(other_device, problem, None)
    check(other_device, problem, None, accumulate=True)


@pytest.mark.parametrize(("dtype", "outputs"), [("", 1024), ("f16", 2048)])
def test_gradients_past_the_caches(context, dtype: str, outputs: int) -> None:
    """A gradient of weights that no cache keeps, at addresses that allow whole vectors and at those that do not."""
    problem = core.parse(f"dense backward_weight {dtype} n3 i2080 o{outputs}")
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments()[:2])
    raw = np.empty(problem.arguments()[2].size + 64, x.dtype)
    start = -raw.ctypes.data // raw.itemsize % (64 // raw.itemsize)
    expected = dy.T.astype("float64") @ x
    for shift in (0, 1):
        dw = raw[start + shift : start + shift + expected.size].reshape(expected.shape)
        dw[...] = np.nan
        context.plan(problem).run(x=x, dy=dy, dw=dw)
        rounding = 2.0**-11 if dtype else 8 * 2.0**-24
        assert np.abs(dw - expected).max() <= rounding * np.abs(expected).max() + 1e-6


@pytest.mark.parametrize("name", ["batch-3", "batch-5", "batch-67", "transposed-batch-8"])
def test_infinities_stay_where_they_belong(context, name: str) -> None:
    problem = core.parse(LINES[name])
    n, i, o = problem.batch, problem.inputs, problem.outputs
    x, dy = np.ones((n, i), np.float32), np.ones((n, o), np.float32)
    x[-1, -1] = np.inf
    w = np.ones((i, o) if problem.transposed else (o, i), np.float32)
    y, dw = np.full((n, o), np.nan, np.float32), np.full(w.shape, np.nan, np.float32)
    problem = DenseProblem("forward", n, i, o, problem.transposed)
    context.plan(problem).run(x=x, w=w, y=y)
    assert (y[:-1] == i).all() and np.isposinf(y[-1]).all()
    context.plan(problem.with_direction("backward_weight")).run(x=x, dy=dy, dw=dw)
    dw = dw if problem.transposed else dw.T
    assert (dw[:-1] == n).all() and np.isposinf(dw[-1]).all()


WRONG = {
    "dense n1 i0 o1": "inputs 0, expected 1 to",
    "dense n1 i1 o0": "outputs 0, expected 1 to",
    "dense n1 i1": "expected a word oN",
    "dense sideways n1 i1 o1": "got word 'sideways'",
    "dense n1 n2 i1 o1": "got word 'n2'",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_name_what_does_not_fit(text: str) -> None:
    with pytest.raises(ProblemError) as error:
        core.parse(text)
    assert str(error.value).startswith("[dense] got") and WRONG[text] in str(error.value)
