"""The depthwise convolution for GPUs where its kernels have too many taps to unroll, and what it declines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import gpu as depthwise_gpu
from clgraft.core.operators.conv.depthwise import gpu_planes, gpu_staged
from clgraft.core.session.context import Context
from tests.core.conv_checks import OUTPUTS, check, random_arrays

WIDE = (
    "conv g2 n1 ic2 ih128 iw160 oc2 kh64 kw64 sh32 sw32",  # FCN's 32 times upsampling, the other way round
    "conv g3 n2 ic3 ih37 iw41 oc6 kh16 kw16 sh8 sw8 ph4 pw4",
    "conv g2 n2 ic2 ih31 iw27 oc2 kh11 kw11 ph5 pw5 b1",
    "conv g2 n1 ic2 ih43 iw50 oc4 kh7 kw13 sh6 sw4 ph4 pw5 dh4 dw3",
    "conv g3 n2 ic3 iw190 oc3 kw70 sw3 pw40 b1",
    "conv f16 g2 n1 ic2 ih90 iw9 oc2 kh70 kw1 sh4 sw2 ph8",
)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("text", WIDE)
def test_many_taps(text: str, direction: str) -> None:
    problem = core.parse(text).with_direction(direction)
    assert "wide" in depthwise_gpu.plan(problem, core.context()).launches[0].kernel.function_name
    check(core.context(), problem, "depthwise_gpu")
    check(core.context(), problem, "depthwise_gpu", accumulate=True, seed=7)


def test_local_memory_bounds_the_sums_of_a_filter() -> None:
    context = Context.on(None)
    context.device = replace(context.device, local_memory=depthwise_gpu.GROUP * 4 * 9)
    problem = core.parse("conv g3 n2 ic3 ih21 iw23 oc3 kh5 kw5 ph2 pw2").with_direction("backward_filter")
    check(context, problem, "depthwise_gpu")
    context.device = replace(context.device, local_memory=depthwise_gpu.GROUP * 4 * 4)
    with pytest.raises(Declined, match="the local memory"):
        depthwise_gpu.plan(problem, context)


BLOCKS = (
    "conv g5 n2 ic5 ih9 iw12 oc5 kh3 kw3 ph1 pw1 b1",  # lines of a multiple of four: read in vectors
    "conv g3 n2 ic3 ih10 iw13 oc6 kh3 kw3 ph1 pw1",
    "conv g3 n2 ic3 ih11 iw16 oc3 kh5 kw5 sh2 sw2 ph2 pw2",
    "conv g2 n1 ic2 ih9 iw20 oc2 kh3 kw7 sh1 sw3 pw5",
    "conv g2 n1 ic2 ih7 iw8 oc2 kh7 kw7 ph3 pw3",
    "conv f16 g3 n2 ic3 ih10 iw8 oc3 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv bf16 g3 n2 ic3 ih10 iw12 oc3 kh3 kw3 ph1 pw1 b1",
    "conv f16 g2 n1 ic2 ih13 iw12 oc2 kh3 kw3 ph2 pw2 dh2 dw2",
    "conv f64 g3 n2 ic3 ih10 iw8 oc3 kh3 kw3 ph1 pw1",
    "conv g3 n2 ic3 ih13 iw12 oc3 kh3 kw3 ph2 pw2 dh2 dw2 b1",
    "conv g2 n1 ic2 ih33 iw29 oc4 kh3 kw3 ph12 pw12 dh12 dw12",
    "conv g2 n1 ic2 ih17 iw16 oc2 kh1 kw5 pw4 dh3 dw2",
    "conv f16 g2 n2 ic2 ih19 iw24 oc2 kh3 kw3 ph1 pw1",  # two vectors in a block's row
    "conv bf16 g2 n1 ic2 ih21 iw16 oc2 kh3 kw3 ph2 pw2 dh2 dw2 b1",
)


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize("text", BLOCKS)
def test_blocks_at_every_address(text: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are read only where the tensors' addresses allow it."""
    monkeypatch.setattr(gpu_planes, "MOST_ELEMENTS", 0)
    monkeypatch.setattr(gpu_staged, "MOST_HELD", 0)
    monkeypatch.setattr(gpu_staged, "MOST_FILTER_HELD", 0)
    problem, context = core.parse(text).with_direction(direction), Context.on(None)
    assert _kernels(problem) & {"depthwise_gpu_columns", "depthwise_gpu_phases", "depthwise_gpu_columns_filter"}
    _check_at_every_address(context, problem)


def _check_at_every_address(context: Context, problem: core.ConvProblem) -> None:
    direction = problem.direction
    aligned = check(context, problem, "depthwise_gpu", seed=3)
    check(context, problem, "depthwise_gpu", accumulate=True, seed=3)
    arrays = random_arrays(problem, 3)
    plan = context.plan(problem, algorithm="depthwise_gpu")
    for shifted in plan.arguments:
        given = {}
        for argument in plan.arguments:
            whole = np.full(argument.size + 24, np.nan, argument.dtype)
            first = -whole.ctypes.data // whole.itemsize % 16 + (argument is shifted)
            given[argument.name] = whole[first:][: argument.size].reshape(argument.shape)
            if argument.role == "in":
                given[argument.name][...] = arrays[argument.name]
        plan.run(**given)
        assert np.array_equal(given[OUTPUTS[direction]], aligned)


PLANES = (
    "conv g70 n3 ic70 ih7 iw7 oc70 kh3 kw3 ph1 pw1 b1",
    "conv g33 n1 ic33 ih8 iw8 oc33 kh5 kw5 ph2 pw2",
    "conv g5 n2 ic5 ih5 iw3 oc5 kh2 kw3 ph2 pw1 qh1 qw0",  # results are more than x
    "conv g3 n2 ic3 ih6 iw9 oc3 kh3 kw3 dh2 dw3",
    "conv g4 n1 ic4 ih1 iw1 oc4 kh1 kw1",
    "conv f16 g3 n23 ic3 ih7 iw7 oc3 kh3 kw3 ph1 pw1",
    "conv f64 g3 n2 ic3 ih4 iw7 oc3 kh3 kw3 ph1 pw1",
)
STAGED = (
    "conv g11 n2 ic11 ih14 iw14 oc11 kh3 kw3 ph1 pw1 b1",
    "conv f16 g9 n2 ic9 ih14 iw14 oc9 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv bf16 g5 n2 ic5 ih18 iw20 oc5 kh5 kw5 ph2 pw2 b1",
    "conv g7 n1 ic7 ih17 iw19 oc7 kh3 kw3 sh2 sw3 ph1 pw2",  # blocks that are not whole
    "conv f16 g9 n1 ic9 ih15 iw13 oc9 kh3 kw3 sh3 sw2 dh2 dw3 ph1",
    "conv f64 g5 n1 ic5 ih11 iw13 oc5 kh2 kw5 sh4 sw3 ph1 pw1",  # elements of x that no tap meets
)


STAGED_FILTERS = (
    "conv f16 g24 n7 ic24 ih7 iw7 oc24 kh3 kw3 ph1 pw1",  # neighbours of several planes are read together
    "conv bf16 g8 n2 ic8 ih14 iw14 oc8 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv g3 n3 ic3 ih28 iw28 oc3 kh5 kw5 ph2 pw2",
    "conv f16 g5 n1 ic5 ih20 iw9 oc5 kh3 kw3 ph1 pw1 b1",
)


@pytest.mark.parametrize("text", PLANES + STAGED + STAGED_FILTERS)
def test_filters_of_small_planes(text: str) -> None:
    """Each work-group sums neighbouring channels of some images."""
    problem = core.parse(text).with_direction("backward_filter")
    assert _kernels(problem) == {"depthwise_gpu_staged_filter", "depthwise_sum_splits"}
    _check_at_every_address(core.context(), problem)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
@pytest.mark.parametrize("text", PLANES + STAGED)
def test_small_planes(text: str, direction: str) -> None:
    problem = core.parse(text).with_direction(direction)
    assert _kernels(problem) == {"depthwise_gpu_planes" if text in PLANES else "depthwise_gpu_staged"}
    _check_at_every_address(core.context(), problem)


@pytest.mark.parametrize("direction", ["forward", "backward_data"])
def test_small_planes_with_a_stride(direction: str) -> None:
    problem = core.parse("conv g9 n2 ic9 ih7 iw8 oc9 kh3 kw3 sh2 sw3 ph1 pw1 b1").with_direction(direction)
    assert _kernels(problem) == {"depthwise_gpu_planes" if direction == "forward" else "depthwise_gpu_staged"}
    check(core.context(), problem, "depthwise_gpu")


def test_few_planes_have_more_work_items() -> None:
    """Work-items have fewer rows where their work-groups would not fill the device."""
    few, many = (core.parse(f"conv g9 n{n} ic9 ih14 iw14 oc9 kh3 kw3 ph1 pw1") for n in (1, 500))
    context = Context.on(None)
    context.device = replace(context.device, compute_units=2)
    rows = [depthwise_gpu.plan(problem, context).launches[0].global_size[0] for problem in (few, many)]
    assert rows[0] / 9 > rows[1] / 4500
    check(context, few, "depthwise_gpu")


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("conv g3 n2 ic3 ih7 iw7 oc6 kh3 kw3 ph1 pw1", "forward"),
        ("conv g3 n2 ic3 ih31 iw33 oc3 kh3 kw3 ph1 pw1", "forward"),
        ("conv g3 n2 ic3 ih7 iw7 oc3 kh3 kw3 sh5 sw2 ph1 pw1", "backward_data"),
        ("conv g3 n2 ic3 ih7 iw7 oc3 kh6 kw5 ph3 pw2", "forward"),
    ],
)
def test_what_is_no_small_plane(text: str, direction: str) -> None:
    problem = core.parse(text).with_direction(direction)
    assert _kernels(problem) <= {"depthwise_gpu_columns", "depthwise_gpu_phases", "depthwise_gpu_spread"}
    check(core.context(), problem, "depthwise_gpu")


def _kernels(problem: core.ConvProblem) -> set[str]:
    return {step.kernel.function_name for step in depthwise_gpu.plan(problem, core.context()).launches}


def test_what_blocks_do_not_serve() -> None:
    for text, direction, reason in (
        ("conv g2 n1 ic2 ih20 iw20 oc2 kh9 kw9", "forward", "81 taps"),
        ("conv g2 n1 ic2 ih20 iw20 oc2 kh3 kw3 sh5 sw1", "backward_data", "stride"),
        ("conv g2 n1 ic2 ih20 iw20 oc2 kh3 kw3 sh2 sw2 dh2", "backward_data", "dilation"),
        ("conv g2 n1 ic2 ih9 iw60 oc2 kh3 kw3 dw25", "forward", "50 elements"),
        ("conv g2 n1 ic2 ih0 iw5 oc2 kh3 kw3 ph2 pw1", "forward", "no elements"),
    ):
        problem = core.parse(text).with_direction(direction)
        with pytest.raises(Declined, match=reason):
            depthwise_gpu.plan(problem, core.context(), {"rows": 4, "columns": 4})
        check(core.context(), problem, "depthwise_gpu")
