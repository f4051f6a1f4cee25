"""Results of convolutions too large for any cache are stored past them, where addresses allow that: the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.conv import past_caches
from clgraft.core.operators.conv.depthwise import cpu_rows
from clgraft.core.operators.pointwise.generate import outgrows_caches
from clgraft.core.planning.implementation import implementations
from clgraft.core.session.context import Context
from tests.core.conv_checks import check
from tests.core.test_pointwise_past_caches import aligned

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

EPILOGUE = "with channel : real t = x0 * x1; y0 = t > 0 ? t : 0.25 * t"
# rows that are whole vectors and rows that are not, tiles that end early, sums of several parts; who computes them
LINES = {
    "in place": ("conv forward n2 ic5 ih8 iw12 oc17 kh1 kw1 b1", "cpu_gemm"),
    "in place, groups": ("conv forward g2 n3 ic6 ih4 iw20 oc34 kh1 kw1", "cpu_gemm"),
    "in place, odd planes": ("conv forward n2 ic5 ih7 iw7 oc17 kh1 kw1", "cpu_gemm"),
    "in place, two parts": ("conv forward n1 ic2000 ih4 iw12 oc9 kh1 kw1", "cpu_gemm"),
    "in place, f64": ("conv forward f64 n2 ic5 ih8 iw12 oc17 kh1 kw1 b1", "cpu_gemm"),
    "in place, f16": ("conv forward f16 n2 ic5 ih8 iw12 oc17 kh1 kw1 b1", "cpu_gemm"),
    "in place, f16, whole lines": ("conv forward f16 n3 ic5 ih12 iw16 oc17 kh1 kw1 b1", "cpu_gemm"),
    "in place, f16, odd planes": ("conv forward f16 n3 ic5 ih9 iw9 oc17 kh1 kw1", "cpu_gemm"),
    "gradient in place": ("conv backward_data n2 ic17 ih8 iw12 oc5 kh1 kw1", "cpu_gemm"),
    "gradient that is spread": ("conv backward_data n2 ic17 ih16 iw24 oc5 kh1 kw1 sh2 sw2", "cpu_gemm"),
    "gradient that is spread, odd rows": ("conv backward_data n2 ic17 ih15 iw37 oc5 kh1 kw1 sh2 sw2", "cpu_gemm"),
    "gradient that is spread, long rows": ("conv backward_data n2 ic3 iw2500 oc5 kw1 sw3", "cpu_gemm"),
    "gather": ("conv forward n2 ic3 ih16 iw24 oc17 kh3 kw3 sh2 sw2 ph1 pw1 b1", "cpu_gemm"),
    "gather, two parts": ("conv forward n1 ic300 ih7 iw18 oc9 kh3 kw3 ph1 pw1", "cpu_gemm"),
    "first layer": ("conv forward n2 ic3 ih33 iw64 oc60 kh3 kw3 sh2 sw2 ph1 pw1 b1", "few_channels_cpu"),
    "first layer, three tiles": ("conv forward n2 ic2 ih15 iw32 oc149 kh3 kw3 ph1 pw1", "few_channels_cpu"),
    "first layer, short parts": ("conv forward n3 ic3 ih8 iw10 oc64 kh3 kw3 ph1 pw1", "few_channels_cpu"),
    "first layer, f64": ("conv forward f64 n2 ic3 ih16 iw24 oc64 kh3 kw3 ph1 pw1", "few_channels_cpu"),
    "few planes": ("conv forward n2 ic19 ih13 iw32 oc3 kh3 kw3 ph1 pw1 b1", "few_planes_cpu"),
    "few planes, odd rows": ("conv forward n2 ic19 ih13 iw37 oc3 kh3 kw3 ph1 pw1", "few_planes_cpu"),
    "winograd": ("conv forward n2 ic16 ih16 iw20 oc18 kh3 kw3 ph1 pw1 b1", "winograd"),
    "winograd, odd planes": ("conv backward_data n2 ic18 ih9 iw11 oc16 kh3 kw3 ph1 pw1", "winograd"),
    "depthwise": ("conv forward g3 n2 ic3 ih9 iw32 oc3 kh3 kw3 ph1 pw1 b1", "depthwise_rows"),
    "depthwise, odd rows": ("conv forward g3 n2 ic3 ih9 iw37 oc3 kh3 kw3 ph1 pw1", "depthwise_rows"),
    "depthwise, one size": ("conv forward g3 n2 ic3 ih9 iw32 oc3 kh3 kw3 ph1 pw1 b1", "depthwise_fixed"),
    "depthwise, stride 2": ("conv backward_data g3 n2 ic3 ih9 iw64 oc3 kh3 kw3 sh2 sw2 ph1 pw1", "depthwise_rows"),
}
GRADIENTS = {
    "gradients": ("gradients conv forward g16 n2 ic16 ih9 iw32 oc16 kh3 kw3 ph1 pw1", "in_kernel"),
    "gradients, stride 2": ("gradients conv forward g16 n2 ic16 ih11 iw64 oc16 kh3 kw3 sh2 sw2 ph1 pw1", "in_kernel"),
}

# every line by itself, those of forward (gradients have no epilogues) with an epilogue, too
CASES = [
    pytest.param(key, epilogue, id=f"{key}-{'epilogue' if epilogue else 'plain'}")
    for key, (line, _) in {**LINES, **GRADIENTS}.items()
    for epilogue in (False, True)
    if not epilogue or line.startswith("conv forward")
]


@cache
def _context(past: bool) -> Context:
    """Return a context for plans with such stores and one for plans without them."""
    return Context.on(None)


@pytest.fixture(params=[True, False], ids=["aligned", "misaligned"])
def shift(request: pytest.FixtureRequest) -> Iterator[int]:
    yield 0 if request.param else 1


def plans(line: str, name: str) -> tuple[core.Problem, Any, Any, set[str]]:
    """Return a problem with its plan without such stores and with them, and the kernels that have them."""
    problem = core.parse(line)
    found, having = [], set()
    for past in (False, True):
        context = _context(past)
        planner = context.planner

        def kernel(file: str, kernel_name: str, defines: Any = None, *others: Any, planner: Any = planner) -> Any:
            if defines and "PAST_CACHES" in defines:
                having.add(kernel_name)
            return planner.kernel(file, kernel_name, defines, *others)

        base = problem.base if line.startswith("fused") else problem
        epilogue = {"epilogue": problem.epilogue} if line.startswith("fused") else {}
        with (
            mock.patch.object(past_caches, "outgrows_caches", return_value=past),
            mock.patch.object(past_caches, "DEEP", math.inf),
        ):
            implementation = next(item for item in implementations(base) if name == item.NAME)
            watched = SimpleNamespace(device=context.device, kernel=kernel)
            launches = implementation.plan(base, watched, **epilogue)
            found.append(context.plan_launches(problem, launches, name))
        assert past or not having
    return problem, *found, having


@pytest.mark.parametrize(("key", "epilogue"), CASES)
def test_the_same_bits_past_the_caches(key: str, epilogue: bool, shift: int) -> None:
    line, name = {**LINES, **GRADIENTS}[key]
    if key in GRADIENTS and core.context().device.vector_width < 16:
        pytest.skip("the kernel of both gradients is for processors with 32 vector registers")
    if "f64" in line and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    problem, usual, past, having = plans(f"fused {line} {EPILOGUE}" if epilogue else line, name)
    rng = np.random.default_rng(1)
    arrays = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    results = [argument for argument in problem.arguments() if argument.role == "out"]
    expected = {a.name: np.full(a.shape, np.nan, a.dtype) for a in results}
    found = {name: aligned(array, shift) for name, array in expected.items()}
    usual.run(**arrays, **expected)
    past.run(**arrays, **found)
    assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
    usual.run(**arrays, **{name: core.accumulate(array) for name, array in expected.items()})
    past.run(**arrays, **{name: core.accumulate(array) for name, array in found.items()})
    assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
    if core.context().device.vector_width >= 16:
        assert len(having) == 1, having


def test_past_the_caches_matches_float64() -> None:
    context = Context.on(None)
    with (
        mock.patch.object(past_caches, "outgrows_caches", return_value=True),
        mock.patch.object(past_caches, "DEEP", math.inf),
    ):
        for line, name in LINES.values():
            if "f64" not in line or context.device.has_fp64:
                check(context, core.parse(line), name)


def test_which_results_go_past_caches() -> None:
    planner = core.context().planner
    wide = planner.device.vector_width >= 16
    for batch, dtype, size in ((1, "f32", 4), (8, "f32", 4), (64, "f32", 4), (64, "f16", 2)):
        problem = core.parse(f"conv forward {dtype} n{batch} ic16 ih112 iw112 oc96 kh1 kw1")
        nbytes = batch * 96 * 112 * 112 * size
        for least in (0.75, 1.0, 2):
            large = wide and outgrows_caches(planner, int(nbytes / least))
            for together in (16, 32):
                found = past_caches.past_caches(planner, problem, together, least)
                assert found == ({"PAST_CACHES": 1} if large and together * size >= 64 else {})
    assert not past_caches.past_caches(planner, core.parse("conv forward n0 ic1 ih1 iw1 oc1 kh1 kw1"), 16)


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("conv forward n8 ic63 ih8 iw8 oc16 kh1 kw1", True),
        ("conv forward n8 ic64 ih8 iw8 oc16 kh1 kw1", False),
        ("conv forward g2 n8 ic126 ih8 iw8 oc16 kh1 kw1", True),
        ("conv forward n8 ic8 ih8 iw8 oc16 kh3 kw3", False),
        ("conv backward_data n8 ic16 ih8 iw8 oc64 kh1 kw1", False),
        ("conv backward_data n8 ic64 ih8 iw8 oc16 kh1 kw1", True),
        ("conv forward f16 n8 ic64 ih8 iw8 oc16 kh1 kw1", True),
    ],
)
def test_products_with_many_terms_stay_in_the_caches(line: str, goes: bool) -> None:
    """Their time hides that lines are read, and some processors wait for stores past the caches."""
    context = Context.on(None)
    context.device = replace(context.device, vector_width=16)
    problem = core.parse(line)
    with mock.patch.object(past_caches, "outgrows_caches", return_value=True):
        found = past_caches.product_past_caches(context.planner, problem, 32)
        spread = past_caches.product_past_caches(context.planner, problem, 32, in_order=True)
    assert found == ({"PAST_CACHES": 1} if goes else {})
    assert spread == {"PAST_CACHES": 1}


@pytest.mark.parametrize(("cache_mib", "units", "least"), [(0, 2, 2.0), (48, 2, 4 / 3), (260, 2, 1.0), (260, 16, 1.0)])
def test_depthwise_results_go_past_caches_from_a_size_on(cache_mib: int, units: int, least: float) -> None:
    device = replace(core.context().device, cache_bytes=cache_mib * 2**20, compute_units=units)
    assert cpu_rows.past_from(device) == pytest.approx(least)


def test_short_vectors_go_past_caches_where_lines_are_stored_in_order() -> None:
    context = Context.on(None)
    context.device = replace(context.device, vector_width=8)
    problem = core.parse("conv backward_data n64 ic96 ih112 iw112 oc16 kh1 kw1 sh2 sw2")
    assert past_caches.past_caches(context.planner, problem, 24) == {}
    in_order = past_caches.past_caches(context.planner, problem, 24, in_order=True)
    assert in_order == ({"PAST_CACHES": 1} if outgrows_caches(context.planner, 64 * 96 * 112 * 112 * 4) else {})
