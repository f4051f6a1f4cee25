"""Every implementation and every setting that tuning may choose is right, over a spread of problems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv import few_channels_gpu
from clgraft.core.operators.conv.depthwise import gpu as depthwise_gpu
from clgraft.core.operators.conv.gemm_gpu.gemm import PARTS
from clgraft.core.operators.conv.gemm_gpu.gemm import PORTABLE as GPU_GEMM
from clgraft.core.tuning import Choice
from clgraft.core.tuning.search import choices
from clgraft.core.tuning.trial import Trial
from tests.core.conv_checks import DIRECTIONS, random_arrays
from tests.problem_sets import problem_lines

LINES = problem_lines("conv")
SPREAD = (
    "plain-3x3-bias",
    "3x3-many-channels",
    "3x3-asymmetric-channels",
    "f16-many-channels",
    "1x1-plane-rest",
    "1x1-stride-2",
    "7x7-stride-2",
    "1x7-many-channels",
    "5x1-many-channels",
    "dilate-mixed",
    "groups-2",
    "3d-stride-dilate",
    "f64-3x3",
    "batch-0",
)
DEPTHWISE = (
    "conv g19 n3 ic19 ih13 iw17 oc19 kh3 kw3 ph1 pw1",
    "conv g6 n2 ic6 ih14 iw11 oc12 kh5 kw5 sh2 sw2 ph2 pw2",
    "conv g40 n2 ic40 ih7 iw7 oc40 kh3 kw3 ph2 pw2 dh2 dw2",
)
POOLS = (
    "pool forward max n2 c5 ih13 iw37 kh3 kw3 sh2 sw2 ph1 pw1",
    "pool backward max n3 c5 ih13 iw37 kh3 kw3 sh2 sw2 ph1 pw1",
    "pool backward average n2 c7 ih12 iw9 kh2 kw2 sh2 sw2",
    "pool forward average f16 n2 c7 ih12 iw9 kh3 kw3 ph1 pw1 count_inside",
)
DENSE = (
    "dense n8 i257 o129 b1",
    "dense n19 i131 o97",
    "dense n35 i70 o200 t1 b1",
    "dense f64 n9 i61 o35",
    "dense f16 n3 i150 o40 b1",
    "dense bf16 n19 i130 o97",
)


def prove(context, problem, listed) -> int:
    """Run choices into numbers that are none, twice, and onto random numbers; return how many served the problem."""
    trial = Trial(problem, context)
    served = 0
    for choice in listed:
        try:
            steps = context.launches(problem, choice)
        except Declined:
            continue
        served += 1
        runner = trial.runner(steps, str(choice))
        first = {name: array.copy() for name, array in runner.results().items()}
        error = trial.error(first)
        assert error <= 1, f"{problem} by {choice}: {error:.1f} times the error that is allowed"
        for name, array in runner.results().items():
            assert np.array_equal(array, first[name], equal_nan=True), f"{problem} by {choice}: {name} differs"
        _accumulates(context, problem, trial, choice, first)
    return served


def _accumulates(context, problem, trial, choice, first) -> None:
    plan = context.plan_launches(problem, context.launches(problem, choice), str(choice))
    outputs = [argument for argument in plan.arguments if argument.role == "out"]
    base = {a.name: np.random.default_rng(1).integers(-3, 4, a.shape).astype(a.dtype) for a in outputs}
    sums = {name: array.copy() for name, array in base.items()}
    given = {a.name: trial.inputs[a.name] for a in plan.arguments if a.role == "in"}
    plan.run(scalars=trial.scalars, **given, **{name: core.accumulate(array) for name, array in sums.items()})
    for name, array in sums.items():
        unit = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-20, "float64": 2.0**-49}[problem.dtype]
        expected = first[name].astype(np.float64) + base[name]
        allowed = unit * (3 + np.abs(expected).max(initial=0))
        assert np.abs(array - expected).max(initial=0) <= allowed, f"{problem} by {choice}: {name} is not added to"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", SPREAD)
def test_convolutions(context, name, direction):
    problem = core.parse(LINES[name]).with_direction(direction)
    served = prove(context, problem, choices(problem, context)[1:])
    assert served or not problem.arguments()[-1].size  # without elements there is nothing to search


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", DEPTHWISE)
def test_depthwise_convolutions(context, text, direction):
    problem = core.parse(text).with_direction(direction)
    assert prove(context, problem, choices(problem, context)[1:])


@pytest.mark.parametrize("text", POOLS)
def test_pooling(context, text):
    problem = core.parse(text)
    listed = choices(problem, context)[1:]
    assert prove(context, problem, listed) > (8 if context.device.is_cpu else 0)


@pytest.mark.parametrize("text", DENSE)
def test_dense_layers(context, text):
    served = 0
    for direction in ("forward", "backward_data", "backward_weight"):
        words = text if direction == "forward" else text.replace(" b1", "")
        problem = core.parse(words.replace("dense", f"dense {direction}"))
        served += prove(context, problem, choices(problem, context)[1:])
    assert served > (15 if context.device.is_cpu else 2)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_of_the_gpus_depthwise_convolution(context, direction):
    """On every device, since it runs on every device."""
    for text in (*DEPTHWISE[1:], "conv g3 n2 ic3 ih9 iw8 oc3 kh3 kw3 sh2 sw2 dh2 dw2 ph2 pw2"):
        problem = core.parse(text).with_direction(direction)
        listed = [Choice.of("depthwise_gpu", settings) for settings in depthwise_gpu.candidates(problem, context)]
        served = prove(context, problem, listed)
        one_row = "sh2 sw2 dh2" in text  # or a block, which data's gradient of such a stride has none of
        assert served == (2 + 6 * (direction != "backward_data") if one_row else 11)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_parts_of_the_gpus_convolution(context, direction):
    """Tiles as settings are those of `test_conv_gpu_gemm`; here one of them with every number of parts."""
    for name in ("3x3-many-channels", "3x3-stride-2", "groups-2"):
        problem = core.parse(LINES[name]).with_direction(direction)
        listed = [Choice.of("gpu_gemm", settings) for settings in GPU_GEMM.candidates(problem, context)]
        tile = dict(listed[1].settings)["tile"]
        some = [choice for choice in listed if dict(choice.settings).get("tile", tile) == tile]
        assert len(some) == len(PARTS) + 1
        assert prove(context, problem, some) == len(some)


def test_tiles_of_the_gpus_gradients_of_few_channels(context):
    """Each shape of a tile is `test_few_channels_gpu`'s; here what a search lists, of one width and height."""
    problem = core.parse("conv backward_data n2 ic3 ih13 iw11 oc4 kh3 kw3 sh2 sw2 ph1 pw1")
    listed = [Choice.of("few_channels_gpu", settings) for settings in few_channels_gpu.candidates(problem, context)]
    some = [choice for choice in listed if dict(choice.settings).get("tile", "8x8x").startswith("8x8x")]
    assert len(some) > 20
    assert prove(context, problem, some[:6]) >= 5


@pytest.mark.parametrize(
    "choice",
    [
        *("few_channels_gpu tile=8x8x3x1x1", "few_channels_gpu parts=1"),
        *("gpu_gemm tile=7x7x7 parts=1", "gpu_gemm tile=64x64x16 parts=0", "gpu_gemm parts=2"),
        *(
            "depthwise_gpu rows=3",
            "depthwise_gpu cols=2",
            "depthwise_gpu rows=1 columns=4",
            "depthwise_gpu columns=4",
            "planes lanes=3 items=1",
            "planes lanes=8",
        ),
        *("depthwise_rows rows=3", "depthwise_rows items=65", "depthwise_rows rows=2 cols=1"),
        *("cpu packed=0", "cpu rows=8 colour=1", "cpu_panel vectors=3", "cpu_panel rows=0", "cpu_panel packed=8"),
    ],
)
def test_settings_that_cannot_be_are_declined(context, choice):
    texts = {
        "cpu": DENSE[0],
        "cpu_panel": DENSE[1],
        "planes": POOLS[0],
        "depthwise_gpu": DEPTHWISE[0].replace("conv", "conv forward"),
        "few_channels_gpu": "conv backward_data n2 ic3 ih6 iw6 oc8 kh3 kw3 sh2 sw2",
    }
    texts = {name: text.replace("dense n", "dense forward n") for name, text in texts.items()}
    text = texts.get(choice.split()[0], "conv forward n2 ic8 ih6 iw6 oc8 kh3 kw3")
    with pytest.raises(Declined):
        context.launches(core.parse(text), Choice.parse(choice))


def outputs(text: str) -> int:
    """Return how many numbers a convolution computes."""
    p = core.parse(text)
    return math.prod((p.batch, p.out_channels, *p.out_size))


@pytest.mark.parametrize("name", [name for name, text in LINES.items() if outputs(text) <= 2000])
def test_the_reference_is_the_definition(name):
    """Output by output, of small convolutions; the gradients follow by differences (see test_problem_facts.py)."""
    p = core.parse(LINES[name])
    arrays = {key: array.astype(np.float64) for key, array in random_arrays(p).items() if key != "dy"}
    expected = np.zeros((p.batch, p.out_channels, *p.out_size))
    inner, outer = p.in_channels // p.groups, p.out_channels // p.groups
    x, w = arrays["x"], arrays["w"]
    for place in np.ndindex(*p.out_size):
        for tap in np.ndindex(*p.kernel):
            at = tuple(o * s + t * d - b for o, s, t, d, b in zip(place, p.stride, tap, p.dilate, p.pad_begin))
            if not all(0 <= a < size for a, size in zip(at, p.in_size)):
                continue
            for o in range(p.out_channels):
                part = x[(slice(None), slice(o // outer * inner, (o // outer + 1) * inner), *at)]
                expected[(slice(None), o, *place)] += part @ w[(o, slice(None), *tap)]
    if p.bias:
        expected += arrays["b"].reshape(-1, *(1,) * p.ndim)
    np.testing.assert_allclose(p.reference(arrays)["y"], expected, rtol=1e-10, atol=1e-10)
