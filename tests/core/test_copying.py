"""Problems that move elements: exact, in every dtype and write mode, and no memory outside of the output is touched."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core
from clgraft.core import ProblemError
from tests.core.pointwise_checks import MACHINES, planning_for
from tests.problem_sets import problem_lines

PROBLEMS = problem_lines("copying")
DTYPES = {"float32": "", "float16": "f16 ", "float64": "f64 "}
VALUE = 2.5


def problem_of(text: str, dtype: str) -> core.Problem:
    kind, rest = text.split(" ", 1)
    return core.parse(f"{kind} {DTYPES[dtype]}{rest}")


def directions(text: str, dtype: str = "float32") -> list:
    """A problem and its gradient."""
    problem = problem_of(text, dtype)
    if isinstance(problem, core.TransposeProblem):
        return [problem, problem.back()]
    if isinstance(problem, core.RepeatProblem):
        return [problem]
    return [problem.with_direction(direction) for direction in ("forward", "backward")]


def exact(problem: core.Problem, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the outputs have to hold."""
    stepped = isinstance(problem, core.SliceProblem) and set(problem.step) - {1}
    scalars = dict.fromkeys(problem.scalars(), 0.0 if stepped else VALUE)
    return {name: value.astype(problem.dtype) for name, value in problem.reference(given, scalars).items()}


def check(context, problem: core.Problem, rng) -> None:
    given = {a.name: rng.standard_normal(a.shape).astype(a.dtype) for a in problem.arguments() if a.role == "in"}
    expected = exact(problem, dict(given))
    value = 0.0 if isinstance(problem, core.SliceProblem) and set(problem.step) - {1} else VALUE
    scalars = dict.fromkeys(problem.scalars(), value)
    outputs = [argument for argument in problem.arguments() if argument.role == "out"]
    assert {argument.name: argument.shape for argument in outputs} == {n: v.shape for n, v in expected.items()}
    for mode, lead in (("overwrite", 1), ("overwrite", 16), ("accumulate", 1)):  # 16: where units may be written
        blocks = {a.name: np.full(a.size + lead + 1, np.nan, a.dtype) for a in outputs}
        inner = {a.name: blocks[a.name][lead:-1].reshape(a.shape) for a in outputs}
        old = {name: rng.standard_normal(array.shape).astype(array.dtype) for name, array in inner.items()}
        for name, array in inner.items():
            if mode == "accumulate":
                array[...] = old[name]
        bound = {name: core.accumulate(v) if mode == "accumulate" else v for name, v in inner.items()}
        context.plan(problem).run(scalars, **given, **bound)
        for name, array in inner.items():
            wanted = expected[name]
            if mode == "accumulate":
                wide = np.float64 if array.dtype == np.float64 else np.float32
                wanted = (expected[name].astype(wide) + old[name].astype(wide)).astype(array.dtype)
            what = f"{problem} {name} {mode} from {lead} on"
            if isinstance(problem, core.PadProblem) and problem.direction == "backward":  # sums, rounded at each step
                rounding = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-14}[problem.dtype]
                np.testing.assert_allclose(array, wanted, rtol=rounding, atol=2 * rounding, err_msg=what)
            else:
                np.testing.assert_array_equal(array, wanted, err_msg=what)
            assert np.isnan(blocks[name][[*range(lead), -1]]).all(), f"{problem}: written outside of {name}"


@pytest.mark.parametrize("machine", MACHINES[:3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_is_exact(name, machine, rng):
    for problem in directions(PROBLEMS[name]):
        with planning_for(machine) as context:
            check(context, problem, rng)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_turns_tiles(dtype, rng):
    """Through local memory: whole tiles and rests of both sides, with axes before, between and after."""
    if dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    with planning_for("a GPU") as context:
        for text in (
            "transpose x[2,33,70] axes[0,2,1]",
            "transpose x[16,3,31,2] axes[3,1,2,0]",
            "transpose x[3,17,4,64] axes[3,2,0,1]",
            "transpose x[64,32] axes[1,0]",
            "transpose x[34,3,70,2] axes[3,2,1,0]",  # by twos in 16 bits
        ):
            for problem in directions(text, dtype):
                check(context, problem, rng)


MOVES = (
    "concat forward outer[3] extents[4,12,8] inner[5]",  # in units of four
    "concat forward outer[5] extents[4,8,4] inner[1]",  # one unit of a part in a row
    "concat forward outer[2] extents[1,2,3,1,2,3,1,2,3,1,2,3,1,2,3,1,2,3,1] inner[1]",  # more than one launch joins
    "concat forward outer[900] extents[7,30] inner[1]",  # several work-groups for a part
    "slice forward x[3,9,20] y[2,5,8] at[1,2,4]",
    "slice forward x[3,9,20] y[2,5,4] at[1,2,4]",
    "slice forward x[3,9,20] y[2,5,8] at[1,2,3]",
    "slice forward x[3,9,20] y[2,5,1] at[1,2,3]",
    "slice forward x[3,8,2,8,3,8] y[2,4,1,4,2,4] at[1,4,0,4,1,4]",
    "slice forward x[70000] y[64001] at[2000]",
    "slice forward x[5,48] y[3,16] at[1,8]",  # in units of eight in 16 bits
    "slice forward x[5,48] y[3,10] at[1,4]",  # and of two
    "pad forward edge x[2,1,5,7] before[0,3,1,2] behind[1,2,2,3]",
    "pad forward edge x[3,70,33] before[0,1,1] behind[0,1,1]",
    "pad forward edge x[3,7,32] before[0,1,1] behind[0,1,3]",  # by twos in 16 bits
    "pad forward reflect x[9] before[3] behind[4]",
    "repeat x[3,5,7] times[1,2,2]",  # neighbours are one element
    "repeat x[3,5] times[3,8]",
    "repeat x[70] times[4]",
    "pad forward reflect x[2,3,2,3,2,3,2] before[0,1,1,0,1,2,1] behind[1,0,1,2,0,1,1]",  # more axes than a launch has
    "pad forward reflect x[4,5,1] before[0,4,0] behind[0,3,0]",
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_moves_units(dtype, rng):
    if dtype == "float64" and not core.context().device.has_fp64:
        pytest.skip("the device has no float64")
    with planning_for("a GPU") as context:
        for text in MOVES:
            for problem in directions(text, dtype)[: 1 if text.startswith("pad") else 2]:
                check(context, problem, rng)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["join-channels", "slice-planes", "channels-last", "upsampling", "pad-reflect"])
def test_other_dtypes(context, name, dtype, rng):
    if dtype == "float64" and not context.device.has_fp64:
        pytest.skip("the device has no float64")
    for problem in directions(PROBLEMS[name], dtype):
        check(context, problem, rng)


def test_skipped_outputs_are_left_alone(context, rng):
    problem = core.parse("concat backward outer[3] extents[4,1,7] inner[5]")
    dy = rng.standard_normal((3, 12, 5)).astype("f4")
    part = np.full((3, 1, 5), np.nan, "f4")
    before = context.counters()["launches"]
    context.plan(problem).run(dy=dy, dx0=None, dx1=part, dx2=None)
    assert np.array_equal(part, dy[:, 4:5])
    assert context.counters()["launches"] == before + 1


def test_one_launch_per_part(context):
    if not context.device.is_cpu:
        pytest.skip("a GPU joins several parts at once")

    def launches(text: str) -> int:
        problem = core.parse(text)
        arrays = {a.name: np.zeros(a.shape, "f4") for a in problem.arguments()}
        before = context.counters()["launches"]
        context.plan(problem).run(dict.fromkeys(problem.scalars(), 0.0), **arrays)
        return context.counters()["launches"] - before

    assert launches(PROBLEMS["join-channels"]) == 3
    assert launches(PROBLEMS["slice-5-axes"]) == launches(PROBLEMS["six-axes"]) == launches(PROBLEMS["tiles"]) == 1
    assert launches("slice backward x[2,3,9,11] y[2,3,7,8] at[0,0,1,2]") == 5  # the box, and two bars along two axes


@pytest.mark.parametrize("name", PROBLEMS)
def test_text_is_read_back(name):
    assert str(core.parse(PROBLEMS[name])) == PROBLEMS[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concat forward outer[3] extents[] inner[5]", "[concat] got extents (), expected at least one"),
        ("concat forward outer[3] extents[2,-1] inner[5]", "[concat] got extents (2, -1)"),
        ("concat forward outer[3,3] extents[2] inner[5]", "[concat] got outer (3, 3), expected one number"),
        ("concat sideways outer[3] extents[2] inner[5]", "[concat] got word 'sideways'"),
        ("concat forward extents[2] inner[5]", "expected a word outer[...]"),
        ("slice forward x[3,4] y[2,4] at[2,0]", "[slice] got y (2, 4) at (2, 0), expected a box inside x (3, 4)"),
        ("slice forward x[3,4] y[2] at[0,0]", "[slice] got y (2,), expected 2 numbers"),
        ("slice forward x[3,4] y[2,2] at[0,0] step[1,0]", "[slice] got step (1, 0), expected numbers other than 0"),
        ("slice forward x[3,4] y[2,3] at[0,0] step[1,2]", "[slice] got y (2, 3) at (0, 0), expected a box inside"),
        ("pad forward reflect x[3,4] before[0,4] behind[0,0]", "[pad] got before (0, 4), expected less than x (3, 4)"),
        ("pad forward edge x[3,0] before[0,1] behind[0,0]", "[pad] got before (0, 1), expected 0 where x is empty"),
        ("pad forward x[3,4] before[0,1] behind[0,0]", "[pad] got mode '', expected one of"),
        ("transpose x[3,4] axes[0,0]", "[transpose] got axes (0, 0), expected each of [0, 1] once"),
        ("repeat x[3,4] times[2]", "[repeat] got times (2,), expected 2 numbers"),
        ("repeat x[3,-4] times[2,2]", "[repeat] got x (3, -4)"),
    ],
)
def test_errors_name_what_does_not_fit(text, message):
    with pytest.raises(ProblemError) as error:
        core.parse(text)
    assert message in str(error.value), error.value
