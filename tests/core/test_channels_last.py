"""Channels last: every problem of the set, and every implementation for it, against float64 references."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ClgraftError
from clgraft.core.operators.conv.channels_last import depthwise_gpu
from clgraft.core.operators.conv.channels_last.windows import reserved_for_winograd
from clgraft.core.planning.implementation import implementations
from clgraft.core.problem.layout import channels_first
from tests.core import test_pooling
from tests.core.conv_checks import DIRECTIONS, check
from tests.core.every_run import Check, in_directions, served_by
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.problem_sets import problem_lines

LINES = problem_lines("channels_last")
WINDOWS = [name for name, line in LINES.items() if line.startswith("conv")]
DECONVOLUTIONS = [name for name, line in LINES.items() if line.startswith("deconv")]
POOLINGS = [name for name, line in LINES.items() if line.startswith("pool")]


# problems that are computed by all implementations that serve them; the others only by the default
BY_ALL = ("conv-1x1", "depthwise", "pool-max", "pool-whole-max")


def algorithms(context: core.Context, problem: core.Problem, name: str) -> list[str]:
    """Return the names of the implementations to try; at least one serves a problem."""
    if name not in BY_ALL:
        return [context.choose(problem).algorithm]
    names = []
    for implementation in implementations(problem):
        try:
            context.plan(problem, algorithm=implementation.NAME)
        except ClgraftError:
            continue
        names.append(implementation.NAME)
    assert names
    return names


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", WINDOWS)
def test_convolution_matches_float64(context, name: str, direction: str) -> None:
    problem = core.parse(LINES[name]).with_direction(direction)
    assert core.parse(str(problem)) == problem
    if not problem.batch:
        check(context, problem, None)
        return
    for algorithm in algorithms(context, problem, name):
        first = check(context, problem, algorithm)
        np.testing.assert_array_equal(first, check(context, problem, algorithm))
        check(context, problem, algorithm, accumulate=True, seed=3, rounded_first=algorithm == "transposes")


@pytest.mark.parametrize("name", [*DECONVOLUTIONS, "conv-3x3"])
def test_other_directions_match_float64(context, name: str) -> None:
    for problem in in_directions(LINES[name]):
        if problem.kind == "conv" and problem.direction != "backward_bias":
            continue
        rng = np.random.default_rng(1)
        arrays = problem.sample(rng)
        ((output, exact),) = problem.reference(arrays).items()
        for base in (None, rng.standard_normal(exact.shape)):
            result = np.full(exact.shape, np.nan, problem.dtype) if base is None else base.astype(problem.dtype)
            context.plan(problem).run(**arrays, **{output: result if base is None else core.accumulate(result)})
            np.testing.assert_allclose(result, exact + (0 if base is None else base), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POOLINGS)
def test_pooling_matches_float64(context, name: str) -> None:
    for problem in in_directions(LINES[name]):
        if problem.direction.endswith("_argmax"):
            continue  # see test_pooling_argmax
        arrays = problem.sample(np.random.default_rng(2))
        ((output, exact),) = problem.reference(arrays).items()
        for algorithm in algorithms(context, problem, name) if problem.batch else [None]:
            result = np.full(exact.shape, np.nan, problem.dtype)
            context.plan(problem, algorithm=algorithm).run(**arrays, **{output: result})
            test_pooling.check(problem, result, exact)
            ones = np.ones(exact.shape, problem.dtype)
            context.plan(problem, algorithm=algorithm).run(**arrays, **{output: core.accumulate(ones)})
            allowed = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}[problem.dtype]
            np.testing.assert_allclose(ones.astype(np.float64) - 1, exact, rtol=allowed, atol=8 * allowed)


@pytest.mark.parametrize("name", [name for name in POOLINGS if name.startswith("pool-whole")])
def test_whole_images_have_kernels_of_their_own(context, name: str) -> None:
    if not context.device.is_cpu:
        pytest.skip("kernels for CPU devices")
    problems = [p for p in in_directions(LINES[name]) if not p.direction.endswith("_argmax")]
    served = {problem.direction: context.choose(problem).algorithm for problem in problems}
    assert served.pop("forward") == "channels_whole"
    assert served.pop("backward") == ("transposes" if "norm" in name else "channels_whole")
    assert set(served.values()) <= {"transposes"}


def test_winograds_method_where_transpositions_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = {
        "n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1": True,
        "n8 ic256 ih28 iw28 oc256 kh3 kw3 ph2 pw2 dh2 dw2": True,
        "n8 ic192 ih17 iw17 oc192 kh1 kw7 pw3": True,
        "n1 ic512 ih7 iw7 oc512 kh3 kw3 ph1 pw1": False,
        "n1 ic512 ih7 iw7 oc512 kh7 kw1 ph3": False,
        "n8 ic128 ih56 iw56 oc128 kh3 kw3 sh2 sw2 ph1 pw1": True,
        "n1 ic128 ih28 iw28 oc256 kh3 kw3 sh2 sw2 ph1 pw1": False,
        "n8 ic64 ih56 iw56 oc64 kh5 kw5 sh2 sw2 ph2 pw2": False,
        "n8 g2 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1": False,
        "f64 n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1": False,
    }
    for text, gain in gains.items():
        assert bool(reserved_for_winograd(core.parse(f"conv forward {text} layout=nhwc"))) == gain, text
    monkeypatch.setenv("CLGRAFT_WINOGRAD", "off")
    assert not any(reserved_for_winograd(core.parse(f"conv forward {text} layout=nhwc")) for text in gains)


def test_reference_is_that_of_channels_first() -> None:
    """Of the same numbers, in its own layout."""
    text = "n2 g2 ic4 ih6 iw5 oc6 kh3 kw2 sh2 b1"
    last, first = core.parse(f"conv forward {text} layout=nhwc"), core.parse(f"conv forward {text} layout=nchw")
    assert str(first) == f"conv forward {text.replace('g2 ', '').replace('n2', 'g2 n2')}"
    shapes = {argument.name: argument.shape for argument in last.arguments()}
    assert shapes == {"x": (2, 6, 5, 4), "w": (6, 3, 2, 2), "b": (6,), "y": (2, 2, 4, 6)}
    arrays = last.sample(np.random.default_rng(3))
    turned = {name: channels_first(array) for name, array in arrays.items()}
    np.testing.assert_array_equal(channels_first(last.reference(arrays)["y"]), first.reference(turned)["y"])
    assert (last.operations, last.nbytes, last.terms) == (first.operations, first.nbytes, first.terms)
    assert [gradient.problem.layout for gradient in last.gradients()] == ["nhwc"] * 3


@pytest.mark.parametrize("kind", ["conv forward n1 ic2 iw5 oc2 kw3", "pool forward max n1 c2 iw5 kw3"])
def test_unknown_layouts_are_refused(kind: str) -> None:
    with pytest.raises(core.ProblemError, match="layout=nhcw"):
        core.parse(f"{kind} layout=nhcw")
    with pytest.raises(core.ProblemError, match="layout"):
        core.parse(f"{kind} layout=nhwc layout=nhwc")


@pytest.mark.parametrize(
    "line",
    [
        "max n2 c19 ih9 iw8 kh3 kw3 sh2 sw2 ph1 pw1",
        "average n2 c8 ih10 iw12 kh3 kw3 sh2 sw2 ph1 pw1 count_inside",
        "average f16 n2 c12 ih7 iw6 kh7 kw6",
        "lp2 n2 c4 ih6 iw9 kh3 kw2",
        "sum bf16 n3 c4 iw20 kw20",
    ],
)
def test_pooling_has_kernels_for_gpus(line: str) -> None:
    with planning_for(MACHINES[1]) as context:
        for problem in in_directions(f"pool {line} layout=nhwc"):
            if "pixels_gpu" in served_by(problem, True, context):
                case = Check(problem)
                plan = context.plan(problem, "pixels_gpu")
                case.expect_right(plan, case.run(plan))
                case.expect_added(plan, case.run(plan))


@pytest.mark.parametrize(
    "line",
    [
        "n2 g37 ic37 ih9 iw8 oc37 kh3 kw3 ph1 pw1 b1",
        "n2 g20 ic20 ih9 iw11 oc20 kh3 kw3 sh2 sw2 ph1 pw1",
        "n1 g8 ic8 ih13 iw12 oc8 kh5 kw3 sw3 ph2 pw0 qh3 qw2 dh2 dw2 b1",
        "f16 n2 g160 ic160 ih7 iw9 oc160 kh5 kw5 ph2 pw2",
        "bf16 n3 g12 ic12 iw20 oc12 kw7 pw3",
        "f16 n2 g8 ic8 ih13 iw12 oc8 kh3 kw3 ph2 pw2 dh2 dw2 b1",
        "bf16 n1 g37 ic37 ih17 iw15 oc37 kh3 kw3 sh2 sw2 ph2 pw2 dh2",
    ],
)
def test_depthwise_convolution_has_kernels_for_gpus(line: str) -> None:
    epilogue = "channel whole : y0 = fmax(x0 * x1 + x2, 0)"
    with planning_for(MACHINES[1]) as context:
        for problem in in_directions(f"conv {line} layout=nhwc"):
            name = "bias_rows_gpu" if problem.direction == "backward_bias" else "pixels_gpu"
            case = Check(problem)
            plan = context.plan(problem, name)
            case.expect_right(plan, case.run(plan))
            case.expect_added(plan, case.run(plan))
            assert context.choose(problem).algorithm == name
        case = Check(core.parse(f"fused conv forward {line} layout=nhwc with {epilogue}"))
        plan = context.plan(case.problem, "in_kernel")
        case.expect_right(plan, case.run(plan))


@pytest.mark.parametrize(("strip", "ahead"), [(4, 3), (2, 4), (1, 2)])
@pytest.mark.parametrize(
    "line",
    [
        "f16 n2 g8 ic8 ih13 iw12 oc8 kh3 kw3 ph2 pw2 dh2 dw2 b1",
        "bf16 n1 g37 ic37 ih3 iw15 oc37 kh3 kw3 ph2 pw2",  # steps without any line that is there, fewer than ahead
        "f16 n3 g12 ic12 ih40 iw9 oc12 kh3 kw2 sh2 ph1 pw1 dh3",
    ],
)
def test_depthwise_kernels_read_lines_ahead(line: str, strip: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise_gpu, "STRIPS", (strip,))
    monkeypatch.setattr(depthwise_gpu, "_ahead", lambda *sizes: ahead)
    with planning_for(MACHINES[1]) as context:
        for problem in in_directions(f"conv {line} layout=nhwc"):
            if problem.direction != "backward_bias":
                case = Check(problem)
                plan = context.plan(problem, "pixels_gpu")
                case.expect_right(plan, case.run(plan))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("f16 n2 g16 ic16 ih9 iw12 oc16 kh3 kw3 sh2 sw2 ph1 pw1", "lines_blocks"),
        ("f16 n2 g16 ic16 ih9 iw12 oc16 kh5 kw5 sh2 sw2 ph2 pw2", "pixels_blocks"),
        ("bf16 n2 g37 ic37 ih8 iw7 oc37 kh3 kw2 sh2 sw2 ph2 pw0 dh2", "lines_blocks"),  # pixels that no tap meets
        ("n3 g12 ic12 ih11 iw10 oc12 kh2 kw3 sh3 sw3 ph1 pw2", "pixels_blocks"),
        ("f16 n1 g8 ic8 ih5 iw6 oc8 kh1 kw1 sh2 sw3", "lines_blocks"),
        ("n2 g20 ic20 iw23 oc20 kw5 sw2 pw4", "pixels_blocks"),
        ("bf16 n2 g8 ic8 ih90 iw7 oc8 kh3 kw3 sh2 sw3 ph3 pw4", "lines_blocks"),
        ("f16 n2 g8 ic8 ih13 iw12 oc8 kh7 kw7 sh2 sw2 ph3 pw3", "pixels_spread"),  # too many gradients
        ("f16 n1 g8 ic8 ih13 iw18 oc8 kh3 kw3 sh4 sw4 ph1 pw1", "pixels_spread"),  # too many phases
    ],
)
def test_depthwise_gradients_of_data_with_strides(line: str, name: str) -> None:
    with planning_for(MACHINES[1]) as context:
        case = Check(core.parse(f"conv backward_data {line} layout=nhwc"))
        *_, last = depthwise_gpu.plan(case.problem, context.planner).launches
        assert last.kernel.function_name == f"depthwise_{name}"
        plan = context.plan(case.problem, "pixels_gpu")
        case.expect_right(plan, case.run(plan))
        case.expect_added(plan, case.run(plan))


def test_lines_ahead_are_as_many_as_registers_hold() -> None:
    """As many as free registers have room for, and one where a unit has few steps."""
    assert depthwise_gpu._ahead(60, 20, 28) == 3
    assert depthwise_gpu._ahead(50, 20, 28) == 2
    assert depthwise_gpu._ahead(100, 8, 100) == depthwise_gpu.MOST_AHEAD
    assert depthwise_gpu._ahead(60, 20, 7) == depthwise_gpu._ahead(-8, 20, 100) == 1
