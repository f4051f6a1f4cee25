"""Losses at the end of a net, with their gradients, as pointwise problems."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.operators.pointwise import PointwiseProblem

# the output of x0, and the gradient at the output x0 and the label x1
REGRESSIONS = {
    "linear": ("x0", "x0 - x1"),
    "logistic": ("1 / (1 + exp(-x0))", "x0 - x1"),
    "mae": ("x0", "x0 > x1 ? 1 : -1"),
}


def regression_forward(loss: str, size: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = data -> y0 of the output of one of `REGRESSIONS`."""
    return PointwiseProblem(((size,),), f"y0 = {REGRESSIONS[loss][0]};", dtype=dtype)


def regression_backward(loss: str, size: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = output, x1 = label -> y0 = gradient of data, times the scalar ``scale``."""
    text = f"y0 = ({REGRESSIONS[loss][1]}) * scale;"
    return PointwiseProblem(((size,), (size,)), text, (), ("scale",), dtype=dtype)


def difference(shape: Sequence[int], weighted: bool, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = probabilities, x1 = targets -> y0 = gradient of a cross entropy after a softmax.

    It is multiplied by the scalar ``scale``, and with `weighted` by x2 as well.
    """
    weight = " * x2" if weighted else ""
    inputs = (tuple(shape),) * (3 if weighted else 2)
    return PointwiseProblem(inputs, f"y0 = (x0 - x1) * scale{weight};", (), ("scale",), dtype=dtype)
