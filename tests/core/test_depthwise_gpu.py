"""The depthwise convolution for GPUs where its kernels have too many taps to unroll, and what it declines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise import gpu as depthwise_gpu
from clgraft.core.session.context import Context
from tests.core.conv_checks import check

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
