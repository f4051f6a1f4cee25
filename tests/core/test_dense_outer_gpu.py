"""The gradient of a dense layer's weights for small batches on GPUs: against float64, at any address."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.dense import outer_gpu
from clgraft.core.session.context import Context
from tests.core.test_dense import check

# rows and columns that tiles divide and do not, in vectors and one by one; the largest batch
LINES = (
    "dense n1 i1 o1",
    "dense n1 i36 o53",
    "dense n8 i1028 o129",
    "dense n3 i131 o17",
    "dense n32 i520 o67",
    "dense n8 i257 o132 t1",
    "dense f64 n16 i60 o35",
    "dense f16 n5 i61 o36 t1",
)


def planning_for(**changes: int) -> Context:
    """Return a context that plans for another device and runs on this one."""
    context = Context.on(None)
    context.device = replace(context.device, **changes)
    return context


@pytest.fixture(scope="module", params=[1, 4096])
def gpu(request: pytest.FixtureRequest) -> Context:
    """A small and a large GPU: a work-group has many rows, or few."""
    return planning_for(is_cpu=False, is_gpu=True, compute_units=request.param)


def gradient(text: str) -> core.DenseProblem:
    problem = core.parse(text).with_direction("backward_weight")
    assert isinstance(problem, core.DenseProblem)
    return problem


@pytest.mark.parametrize("line", LINES)
def test_matches_float64(gpu: Context, line: str) -> None:
    problem = gradient(line)
    if problem.dtype == "float64" and not gpu.device.has_fp64:
        pytest.skip("the device has no float64")
    assert check(gpu, problem, "outer_gpu").tobytes() == check(gpu, problem, "outer_gpu").tobytes()
    check(gpu, problem, "outer_gpu", accumulate=True, seed=3)


def test_large_devices_get_work_groups_of_few_rows() -> None:
    problem, sizes = gradient("dense n8 i1024 o4096"), []
    for units in (1, 4096):
        context = planning_for(is_cpu=False, compute_units=units)
        (launch,) = outer_gpu.plan(problem, context.planner).launches
        sizes.append(launch.global_size[0] // launch.local_size[0])
    assert sizes == [2 * 4096 // 16, 2 * 4096 // 4]


@pytest.mark.parametrize("dtype", ["", "f16 "])
def test_any_address(gpu: Context, dtype: str) -> None:
    """Nothing next to the weights is written, wherever operands begin."""
    problem = gradient(f"dense {dtype}n4 i44 o21")
    plan = gpu.plan(problem, "outer_gpu")
    rng = np.random.default_rng(0)
    for offsets in ((0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3)):
        blocks = [rng.integers(-9, 9, size + 8).astype(problem.dtype) for size in (4 * 44, 4 * 21, 44 * 21)]
        x, dy, dw = (block[offset : len(block) - 8 + offset] for block, offset in zip(blocks, offsets))
        x, dy, dw = x.reshape(4, 44), dy.reshape(4, 21), dw.reshape(21, 44)
        around = blocks[2].copy()
        around[offsets[2] : offsets[2] + dw.size] = (dy.T.astype(np.float64) @ x).ravel()
        plan.run(x=x, dy=dy, dw=dw)
        np.testing.assert_array_equal(blocks[2], around)


def test_gpus_prefer_it_for_small_batches(gpu: Context) -> None:
    assert gpu.choose(gradient("dense n32 i64 o64")).algorithm == "outer_gpu"
    assert gpu.choose(gradient("dense n33 i64 o64")).algorithm == "through_convolution"
    assert gpu.choose(gradient("dense n0 i64 o64")).algorithm == "through_convolution"


def test_what_is_declined(gpu: Context) -> None:
    cpu = planning_for(is_cpu=True)
    with pytest.raises(Declined, match="batches of 1 to 32"):
        outer_gpu.plan(gradient("dense n33 i4 o4"), gpu.planner)
    with pytest.raises(Declined, match="has no forward"):
        outer_gpu.plan(core.parse("dense forward n4 i4 o4"), gpu.planner)
    with pytest.raises(Declined, match="made for GPUs"):
        outer_gpu.plan(gradient("dense n4 i4 o4"), cpu.planner)
