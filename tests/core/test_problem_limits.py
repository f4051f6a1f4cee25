"""Texts and values that are too long, too deep or of another kind: each is a `ProblemError` that names what came."""

from __future__ import annotations

import pytest

from clgraft import core
from clgraft.core import ConvProblem, DropoutProblem, PointwiseProblem, ProblemError
from clgraft.core.operators.interpolation import InterpolationProblem
from clgraft.core.operators.pointwise.expression import MOST_DEPTH, MOST_NESTED, MOST_OPERATIONS
from clgraft.core.planning.choose import choose
from clgraft.core.tuning import Advice, Choice

DEEP = "(" * 5000 + "x0" + ")" * 5000


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        (f"y0 = {' + '.join(['x0'] * 1500)}", f"expected at most {MOST_DEPTH}: assign parts"),
        (f"y0 = {DEEP}", f"expected at most {MOST_NESTED} in each other"),
        ("y0 = " + "-" * 5000 + "x0", "expected at most"),
        ("y0 = " + "!" * 5000 + "x0", "expected at most"),
        ("y0 = " + "x0 > 0 ? x0 : " * 3000 + "x0", "expected at most"),
        ("y0 = " + "sin(" * 3000 + "x0" + ")" * 3000, "expected at most"),
        ("y0 = x0; " + "y0 += x0; " * 3000, f"expected at most {MOST_OPERATIONS}"),
        ("y0 = x0 + " + "1" * 200_000, "characters, expected at most"),
        ("y0 = x0 * \u0663", "ASCII"),
        ("real gr\u00f6sse = x0; y0 = gr\u00f6sse", "ASCII"),
    ],
)
def test_expressions_have_limits(expression: str, part: str) -> None:
    for make in (
        lambda: PointwiseProblem(((3,),), expression),
        lambda: core.parse(f"pointwise x0[3] : {expression}"),
    ):
        with pytest.raises(ProblemError) as caught:
            make()
        assert part in str(caught.value) and len(str(caught.value)) < 1000


def test_limits_are_reached() -> None:
    """What is just allowed is built and right, so the limits are below what compilers take."""
    import numpy as np

    nested = "(" * (MOST_NESTED - 2) + "x0" + ")" * (MOST_NESTED - 2)
    text = f"y0 = {nested} + {' + '.join(['x0'] * (MOST_DEPTH - 3))}; y1 = x0;" + "y1 += y0;" * 1000
    problem = PointwiseProblem(((3,),), text)
    y0, y1 = (np.full(3, np.nan, np.float32) for _ in range(2))
    core.context().plan(problem).run(x0=np.ones(3, np.float32), y0=y0, y1=y1)
    assert (y0 == MOST_DEPTH - 2).all() and (y1 == 1 + 1000 * (MOST_DEPTH - 2)).all()


@pytest.mark.parametrize("name", ["F", "gr\u00f6sse", "x\uff10"])
def test_names_of_scalars(name: str) -> None:
    with pytest.raises(ProblemError, match=r"\[pointwise\] got "):
        PointwiseProblem(((3,),), "y0 = x0", (), (name,))


@pytest.mark.parametrize(
    "text",
    [
        "conv forward n\uff18 ic1 iw3 oc1 kw1",
        "conv forward n" + "9" * 6000 + " ic1 iw3 oc1 kw1",
        "pool max n1 c1 iw3 kw" + "9" * 6000,
        "softmax n" + "1" * 6000 + " c3",
        "lrn n1 c1 size3 beta1e999",
        "slice forward x[--1] y[1] at[0]",
        "slice forward x[1-] y[1] at[0]",
        "transpose x[3,-] axes[0]",
        "dropout forward x[" + "9" * 6000 + "]",
        "pointwise x0[" + "9" * 6000 + "] : y0 = x0",
        "pointwise x0[3] y0=sum[-] : y0 = x0",
        "batchnorm forward_training n\u00b2 c1 s1",
        "interpolate linear n1 c1 iw" + "9" * 6000 + " ow3",
    ],
)
def test_unreadable_numbers(text: str) -> None:
    with pytest.raises(ProblemError):
        core.parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConvProblem("forward", "many", 1, 1, (3,), (1,)),
        lambda: ConvProblem("forward", 1, 1, 1, 3, (1,)),
        lambda: ConvProblem("forward", float("inf"), 1, 1, (3,), (1,)),
        lambda: ConvProblem("forward", 1, 1, 1, (None,), (1,)),
        lambda: DropoutProblem("forward", "dropout", 5),
        lambda: InterpolationProblem("forward", "linear", 1, 1, None, (3,)),
        lambda: PointwiseProblem(((3,),), 7),
        lambda: core.SoftmaxProblem("forward", [], 3),
        lambda: core.ConcatProblem("forward", "a", (1, 2), 3),
    ],
)
def test_values_of_another_kind(make) -> None:
    with pytest.raises(ProblemError, match="got "):
        make()


def test_settings_of_another_kind_are_ignored(context) -> None:
    """A tuned row with a word where a number belongs costs nothing but its speed."""
    problem = core.parse("conv forward n2 ic16 ih12 iw12 oc16 kh3 kw3 ph1 pw1")
    usual = choose(problem, context.planner)
    algorithm = next(a for a in ("cpu_gemm", "gpu_gemm") if a == "gpu_gemm" or context.device.is_cpu)
    for settings in ("tiles=many", "row_tiles=x", "tile=0", "tiles=0"):
        advice = Advice(Choice.parse(f"{algorithm} {settings}"), "user")
        found = choose(problem, context.planner, advice)
        assert found.algorithm == usual.algorithm and found.declined[0][0] == str(advice)


@pytest.mark.parametrize("value", [None, 1j, "0.5", b"1", [0.5, 0.5], object(), 10**400])
def test_scalars_of_a_run_are_numbers(value: object) -> None:
    import numpy as np

    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    plan = core.context().plan(core.parse("pointwise x0[3] scalars{a} : y0 = a * x0"))
    buffers = [core.Buffer(array.ctypes.data, array.nbytes, "float32") for array in (x, y)]
    for run in (lambda: plan.run(x0=x, y0=y, scalars={"a": value}), lambda: plan.execute(buffers, [value])):
        with pytest.raises(core.ArgumentError, match=r"\[pointwise\] got .* for the scalar a, expected a real number"):
            run()
    with pytest.raises(core.ArgumentError, match="expected a dict"):
        plan.run(x0=x, y0=y, scalars=[value])
    plan.run(x0=x, y0=y, scalars={"a": np.float64(0.5)})
    assert (y == 0.5).all()
