"""Few input channels backward, few output channels forward, on GPUs: against float64, and what is declined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv import few_channels_gpu
from clgraft.core.session.context import Context
from tests.core.conv_checks import check

# strides without and with a rest, dilation with and without common factors, padding beyond the kernel, groups
PROBLEMS = (
    "conv n2 ic3 ih19 iw17 oc7 kh7 kw7 sh2 sw2 ph3 pw3",
    "conv n1 ic3 ih31 iw27 oc5 kh11 kw11 sh4 sw4 ph2 pw2",
    "conv g2 n3 ic2 ih9 iw40 oc6 kh3 kw3 ph1 pw1",
    "conv g2 n1 ic8 ih13 iw11 oc10 kh5 kw3 sh3 sw2 ph2 pw0 qh0 qw2 dh2 dw3",
    "conv n1 ic4 ih9 iw17 oc3 kh3 kw4 sh6 sw4 ph4 pw1 dh4 dw2",
    "conv n2 ic3 ih3 iw2 oc16 kh2 kw1 sh5 sw3",
    "conv n1 ic2 ih4 iw5 oc3 kh3 kw3 ph4 pw5",
    "conv n2 ic1 ih2 iw1 oc1 kh2 kw1",
    "conv n2 ic4 iw149 oc9 kw7 sw3 pw3",
    "conv n0 ic3 ih5 iw5 oc4 kh3 kw3 ph1 pw1",
    "conv f16 n2 ic3 ih7 iw8 oc6 kh3 kw3 sh2 sw2 ph1 pw1",
    "conv bf16 n2 ic2 ih7 iw8 oc6 kh3 kw5 sh2 sw4 ph1 pw1",
    "conv f64 n2 ic3 ih7 iw9 oc6 kh3 kw3 sh2 sw2 ph1 pw1",
)
# forward at stride 1: groups, a bias, asymmetric padding, dilation, one axis, a rest of every step
FORWARD = (
    "conv g2 n3 ic6 ih9 iw40 oc4 kh3 kw3 ph1 pw1",
    "conv g16 n2 ic64 ih14 iw14 oc64 kh3 kw3 ph1 pw1 b1",
    "conv n2 ic7 ih12 iw13 oc3 kh5 kw4 ph2 pw1 qh0 qw2 dh2",
    "conv n2 ic9 ih14 iw9 oc1 kh3 kw2 b1",
    "conv n2 ic9 iw149 oc4 kw7 pw3",
    "conv n0 ic3 ih5 iw5 oc4 kh3 kw3 ph1 pw1",
    "conv f16 n2 ic3 ih7 iw9 oc2 kh3 kw3 ph1 pw1 b1",
    "conv f64 n2 ic3 ih7 iw9 oc3 kh3 kw3 ph1 pw1",
)


def gradient(text: str) -> core.ConvProblem:
    problem = core.parse(text).with_direction("backward_data")
    assert isinstance(problem, core.ConvProblem)
    return problem


@pytest.mark.parametrize(
    ("direction", "text"), [("backward_data", text) for text in PROBLEMS] + [("forward", text) for text in FORWARD]
)
def test_matches_float64(direction: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channels_gpu, "PADDED_SPEED", 1e-9)  # small planes are served, too
    problem = core.parse(text).with_direction(direction)
    if problem.dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    check(core.context(), problem, "few_channels_gpu")
    check(core.context(), problem, "few_channels_gpu", accumulate=True, seed=3)


@pytest.mark.parametrize("tile", ["32x4x1x1x1", "16x8x2x1x2", "8x4x1x4x2", "8x8x4x4x1", "16x4x7x4x1", "8x8x2x1x4"])
def test_every_shape_of_a_tile(tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = few_channels_gpu.PixelTile(*(int(number) for number in tile.split("x")))
    monkeypatch.setattr(few_channels_gpu, "PADDED_SPEED", 1e-9)
    problem, context = gradient("conv n2 ic3 ih37 iw71 oc5 kh5 kw4 sh4 sw2 ph2 pw1"), Context.on(None)
    chosen = few_channels_gpu.plan(problem, context, {"tile": tile}).launches[0]
    assert chosen.local_size == (wanted.threads,)
    usual = few_channels_gpu._fitting
    monkeypatch.setattr(few_channels_gpu, "_fitting", lambda *given: {wanted: usual(*given)[wanted]})
    check(context, problem, "few_channels_gpu")
    check(context, problem, "few_channels_gpu", accumulate=True, seed=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv n1 ic9 ih8 iw8 oc4 kh3 kw3", "at most 4 input channels"),
        ("conv n1 ic3 ih40 iw40 oc4 kh16 kw16", "640 weights"),
        ("conv n1 ic3 ih40 iw40 oc4 kh1 kw1 sh2 sw2", "where there is one"),
        ("conv n1 ic1 id4 ih4 iw4 oc1 kd1 kh1 kw1", "one or two spatial axes"),
        ("conv n1 ic4 ih80 iw80 oc4 kh3 kw3 sh16 sw32", "registers"),
    ],
)
def test_what_is_declined(text: str, message: str) -> None:
    with pytest.raises(Declined, match=message):
        few_channels_gpu.plan(gradient(text), core.context())
    with pytest.raises(Declined, match="is for forward and backward_data"):
        few_channels_gpu.plan(core.parse(text).with_direction("backward_filter"), core.context())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv n1 ic4 ih8 iw8 oc9 kh3 kw3", "at most 4 output channels"),
        ("conv n1 ic4 ih8 iw8 oc3 kh3 kw3 sw2", "forward at stride 1"),
        ("conv n1 ic4 ih8 iw8 oc3 kh3 kw3 ph2 pw2 qw3", "beyond the kernel's reach"),
    ],
)
def test_what_is_declined_forward(text: str, message: str) -> None:
    with pytest.raises(Declined, match=message):
        few_channels_gpu.plan(core.parse(text), core.context())


def test_gpus_prefer_it_where_tiles_are_full() -> None:
    context = Context.on(None)
    context.device = replace(context.device, is_cpu=False, is_gpu=True, device_class="gpu")
    assert (
        context.choose(gradient("conv n8 ic3 ih64 iw64 oc16 kh7 kw7 sh2 sw2 ph3 pw3")).algorithm == "few_channels_gpu"
    )
    assert context.choose(gradient("conv n8 ic16 ih64 iw64 oc16 kh7 kw7 sh2 sw2 ph3 pw3")).algorithm.startswith(
        "gpu_gemm"
    )
    for text in ("conv g32 n8 ic128 ih28 iw28 oc128 kh3 kw3 ph1 pw1", "conv n8 ic16 ih64 iw64 oc3 kh3 kw3 ph1 pw1"):
        assert context.choose(core.parse(text)).algorithm == "few_channels_gpu"
    assert context.choose(core.parse("conv n8 ic16 ih64 iw64 oc16 kh3 kw3 ph1 pw1")).algorithm != "few_channels_gpu"
