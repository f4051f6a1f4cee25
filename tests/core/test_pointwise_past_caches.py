"""Outputs too large for any cache are stored past them, where their addresses allow that: the same values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.batchnorm import channels_cpu
from clgraft.core.operators.pointwise import generate, generated
from clgraft.core.planning.kernels import vector_lanes
from clgraft.core.session.context import Context
from tests.core.pointwise_checks import run

TWO = "y0 = x0 + x1; y1 = x0 * x1;"


@cache
def _context() -> Context:
    return Context.on(None)


@pytest.fixture
def context() -> Iterator[Context]:
    with mock.patch.object(generate, "outgrows_caches", return_value=True):
        yield _context()


def aligned(values: np.ndarray, shift: int = 0) -> np.ndarray:
    """Copy to memory that begins so many elements after a multiple of 128 bytes."""
    room = np.empty(values.size + 256, values.dtype)
    start = -room.ctypes.data % 128 // values.itemsize + shift
    found = room[start : start + values.size].reshape(values.shape)
    found[...] = values
    return found


def arrays_for(problem: core.Problem, shifts: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for argument in problem.arguments():
        values = rng.standard_normal(argument.shape) if argument.role == "in" else np.full(argument.shape, np.nan)
        found[argument.name] = aligned(values.astype(argument.dtype), shifts.get(argument.name, 0))
    return found


@pytest.mark.parametrize("shifts", [{}, {"y0": 1}, {"x0": 3, "y1": 5}, {"y0": 16}], ids=str)
@pytest.mark.parametrize("columns", [16, 64, 131, 1000])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_the_same_values_at_any_address(dtype: str, columns: int, shifts: dict[str, int], context: Context) -> None:
    # x1 is broadcast, so that rows stay rows and begin at addresses of their own
    problem = core.parse(f"pointwise {dtype} x0[7,{columns}] x1[7,1] : {TWO}")
    arrays = arrays_for(problem, shifts)
    context.plan(problem).run(**arrays)
    np.testing.assert_array_equal(arrays["y0"], arrays["x0"] + arrays["x1"])
    np.testing.assert_array_equal(arrays["y1"], arrays["x0"] * arrays["x1"])


@pytest.mark.parametrize("columns", [64, 131])
def test_write_modes_and_places(columns: int, context: Context) -> None:
    problem = core.parse(f"pointwise x0[7,{columns}] x1[7,1] : {TWO}")
    plan = context.plan(problem)
    arrays = arrays_for(problem, {})
    total, product = arrays["x0"] + arrays["x1"], arrays["x0"] * arrays["x1"]
    arrays["y0"][:] = 10
    arrays["y1"][:] = 20
    plan.run(**{**arrays, "y0": core.accumulate(arrays["y0"]), "y1": None})
    np.testing.assert_allclose(arrays["y0"], total + 10, rtol=1e-6)
    assert (arrays["y1"] == 20).all()
    plan.run(**{**arrays, "y0": None, "y1": arrays["x0"]})
    np.testing.assert_array_equal(arrays["x0"], product)


def stores_past(context: Context, problem: core.Problem) -> list[bool]:
    """Return for each kernel of a plan whether it stores past the caches."""
    found = []

    def kernel(file: str, name: str, defines: Any = None, *others: Any) -> Any:
        found.append("PAST_CACHES" in (defines or {}))
        return context.planner.kernel(file, name, defines, *others)

    implementation = channels_cpu if str(problem).startswith("batchnorm") else generated
    implementation.plan(problem, SimpleNamespace(device=context.device, kernel=kernel))
    return found


@pytest.mark.parametrize(
    ("text", "goes_past"),
    [
        ("pointwise x0[7,64] x1[7,1] : y0 = x0 + x1", True),
        ("pointwise x0[7,131] x1[7,1] : y0 = x0 + x1", False),
        ("pointwise f16 x0[7,49] x1[7,1] : y0 = x0 + x1", False),
        ("pointwise x0[7,131] : y0 = 2 * x0", True),  # one row
        ("batchnorm forward_training n3 c8 s64", True),
        ("batchnorm forward_training n3 c8 s49", False),
        ("batchnorm backward_training f16 n3 c8 s49", False),
    ],
)
def test_rows_go_past_where_they_are_whole_vectors(text: str, goes_past: bool, context: Context) -> None:
    """A line that is stored in part is read first: rows of an odd length would gain nothing and wait for that."""
    if not context.device.is_cpu:
        pytest.skip("rows of vectors are for CPU devices")
    assert stores_past(context, core.parse(text)) == [goes_past]


@pytest.mark.parametrize(
    ("outputs", "goes_past"), [("y0 = x0", False), ("y0 = x0; y1 = x0", True), ("y0=sum[0] : y0 = x0", False)]
)
def test_outputs_count_together(outputs: str, goes_past: bool) -> None:
    """Two outputs of three quarters of what caches keep are read by nobody before they have left them."""
    own = Context.on(None)
    if not own.device.is_cpu:
        pytest.skip("rows of vectors are for CPU devices")
    rows = own.device.kept_in_caches * 3 // 4 // 4 // 4096
    text = outputs if " : " in outputs else f": {outputs}"
    problem = core.parse(f"pointwise x0[{rows},4096] {text}")
    assert any(stores_past(own, problem)) == goes_past
    if goes_past:
        arrays = arrays_for(problem, {})
        run(own, problem, arrays)
        np.testing.assert_array_equal(arrays["y0"], arrays["x0"])
        np.testing.assert_array_equal(arrays["y1"], arrays["x0"])


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize(("rows", "parts"), [(127, 1), (391, 3), (1024, 8)])
def test_columns_in_memory_are_folded_in_parts(rows: int, parts: int, dtype: str, context: Context) -> None:
    """Whole numbers, so that sums are exact: of parts of about 128 rows, which the next columns read on in."""
    if not context.device.is_cpu:
        pytest.skip("columns of vectors are for CPU devices")
    problem = core.parse(f"pointwise {dtype} x0[{rows},67] y0=sum[0] y1=max[0] : y0 = x0; y1 = x0;")
    launches = generated.plan(problem, context.planner)
    assert len(launches.launches) == (1 if parts == 1 else 2)
    assert launches.launches[0].global_size[0] == parts * -(-67 // vector_lanes(context.device, problem.dtype))
    x = np.random.default_rng(3).integers(-1, 2, (rows, 67)).astype(problem.dtype)
    found = {name: np.full(67, np.nan, problem.dtype) for name in ("y0", "y1")}
    context.plan(problem).run(x0=x, **found)
    np.testing.assert_array_equal(found["y0"], x.astype(np.float64).sum(0))
    np.testing.assert_array_equal(found["y1"], x.max(0))


def test_a_large_output_is_found_large() -> None:
    """Without a mock: the kernel that is chosen for 2^26 bytes, compared with the one for a small output."""
    large, small = ((f"pointwise x0[{n},4096] x1[{n},1] : {TWO}") for n in (4096, 3))
    with mock.patch.object(generate, "outgrows_caches", wraps=generate.outgrows_caches) as asked:
        own = Context.on(None)
        problem = core.parse(large)
        arrays = arrays_for(problem, {})
        found = run(own, problem, arrays)
        own.plan(core.parse(small))
    if own.device.is_cpu:
        answers = [generate.outgrows_caches(*call.args) for call in asked.call_args_list]
        assert answers == [own.device.kept_in_caches <= 2 * 4096 * 4096 * 4, False]
    np.testing.assert_array_equal(found["y1"], arrays["x0"] * arrays["x1"])
