"""Functions with sums over some axes, as assignments over named values: losses, norms, reductions.

Which names are sums, and over which axes, the caller says by the shapes of the outputs. Scalars are named in the texts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """A loss and its gradient; `scale` is the scalar by which the gradient is multiplied."""

    forward: str
    backward: str


# -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) without overflow; `valid` counts the elements whose target is not
# the scalar `ignored`, which may be NaN for none
SIGMOID_CROSS_ENTROPY = Loss(
    "real keep = trunc(t) == ignored ? 0 : 1; valid = keep; "
    "loss = keep > 0 ? fmax(x, 0) - x * t + log1p(exp(-fabs(x))) : 0;",
    "dx = trunc(t) == ignored ? 0 : (1 / (1 + exp(-x)) - t) * scale;",
)

# (a - b)^2; the gradient is that of a, and with -scale that of b, for half the loss
SQUARED_DISTANCE = Loss("loss = (a - b) * (a - b);", "dx = (a - b) * scale;")


@dataclass(frozen=True)
class MeanVariance:
    """x less its mean, divided by its deviation plus ``eps``: x, y, dx, dy are full, the others are sums of each row.

    The scalar ``share`` is 1 / the elements of a row. The variance is taken from differences to the mean in a pass of
    its own.
    """

    mean: str = "mean = x * share;"
    variance: str = "variance = (x - mean) * (x - mean) * share;"
    centred: str = "y = x - mean;"
    normed: str = "y = (x - mean) / (sqrt(variance) + eps);"
    centred_sum: str = "first = dy * share;"
    centred_gradient: str = "dx = dy - first;"
    normed_sums: str = "first = dy * share; second = dy * y * share;"
    normed_gradient: str = "dx = (dy - first - y * second) / (sqrt(variance) + eps);"


@dataclass(frozen=True)
class Length:
    """``scale x / sqrt(sum of x^2 + eps)``: `squares` and `inner` are sums of each row, `dscale` one along the scales.

    The method: Liu et al. 2015, "ParseNet".
    """

    squares: str = "squares = x * x;"
    forward: str = "y = scale * x / sqrt(squares + eps);"
    inner: str = "inner = scale * dy * x;"
    backward: str = (
        "real factor = 1 / sqrt(squares + eps); "
        "dx = factor * (scale * dy - x * inner * factor * factor); dscale = dy * x * factor;"
    )


@dataclass(frozen=True)
class WindowNorm:
    """``x (1 + alpha mean)^-beta``, `mean` being the mean of x^2 over a window around each element.

    The scalars are ``alpha`` and ``beta``. The gradient has two parts: `inner` is summed over the windows that hold an
    element, which gives `sum`.
    """

    squares: str
    forward: str
    inner: str
    backward: str


def window_norm(beta: float) -> WindowNorm:
    """Return the texts for a power; that of 0.75 is taken by roots, which are exact and much faster than powers."""
    roots = "real root = sqrt(level); real factor = 1 / (root * sqrt(root)); "
    level = "real level = 1 + alpha * mean; " + (roots if beta == 0.75 else "real factor = pow(level, -beta); ")
    return WindowNorm(
        "to = x * x;",
        level + "to = x * factor;",
        level + "to = dy * x * factor / level;",
        level + "to = dy * factor - 2 * alpha * beta * x * sum;",
    )


@dataclass(frozen=True)
class Reduction:
    """What is summed, and its gradient; the scalar is ``factor``."""

    forward: str
    backward: str


def _reduction(value: str, slope: str) -> Reduction:
    return Reduction(f"y = factor * {value};", f"dx = factor * dy * {slope};")


SUM = _reduction("x", "1")
SUM_OF_ABSOLUTE = _reduction("fabs(x)", "(x > 0 ? 1 : x < 0 ? -1 : 0)")
SUM_OF_SQUARES = _reduction("x * x", "2 * x")
