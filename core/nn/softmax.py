"""Softmax along an axis, its logarithm, its gradients and its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.ordering import first_elements, marked
from clgraft.core.nn.reductions import kept_shape
from clgraft.core.nn.shapes import matrix_shape, up_to
from clgraft.core.operators.pointwise import Reduction
from clgraft.core.operators.softmax import SoftmaxProblem


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the products of the sizes before, of and after an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def around_all_from(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the same where all axes from one on are taken as one, as by ONNX up to opset 12 and MXNet's outputs."""
    return (*matrix_shape(shape, axis), 1)


def softmax(
    build: Build,
    x: Tensor,
    sizes: Sequence[int],
    *,
    temperature: float = 1.0,
    log: bool = False,
    negated: bool = False,
) -> Tensor:
    """Return exp(x / temperature) / sum(exp(x / temperature)), or its logarithm.

    Parameters
    ----------
    x : Tensor
    sizes : sequence of int
        Elements before, of and after the axis of the sum, as `around` returns them.
    temperature : float
    log, negated : bool
        Whether it is the logarithm, and whether it is that of -x, a softmin.
    """
    temperature = -temperature if negated else temperature
    problem = SoftmaxProblem("forward", *sizes, log, x.dtype)
    return build.reshape(build.add(problem, x, scalars={"scale": 1 / temperature})[0], x.shape)


def softmax_gradient(
    build: Build, y: Tensor, dy: Tensor, sizes: Sequence[int], *, temperature: float = 1.0, log: bool = False
) -> Tensor:
    """Return the gradient of x from the result of `softmax` and its gradient."""
    problem = SoftmaxProblem("backward", *sizes, log, dy.dtype)
    return build.reshape(build.add(problem, y, dy, scalars={"scale": 1 / temperature})[0], dy.shape)


def safe_softmax(build: Build, x: Tensor, axis: int) -> Tensor:
    """Return the softmax along an axis; where all values are minus infinity, 0."""
    kept = kept_shape(x.shape, [axis])
    (top,) = build.pointwise("y0 = x0;", [x], reduce=(Reduction("max", shape=kept),))
    y = softmax(build, x, around(x.shape, axis))
    return build.pointwise("y0 = isinf(x1) && x1 < 0 ? 0 : x0;", [y, top])[0]


def softmax_up_to(build: Build, x: Tensor, lengths: Tensor, axis: int, *, temperature: float = 1.0) -> Tensor:
    """Return the softmax of the first elements along an axis, and 0 at the others.

    Parameters
    ----------
    x : Tensor
    lengths : Tensor
        How many elements, for each place of the other axes: of x's shape without the axis. No gradient passes.
    axis : int
    temperature : float

    Raises
    ------
    ProblemError
        If the lengths have another shape.
    """
    if lengths.shape != (*x.shape[:axis], *x.shape[axis + 1 :]):
        expected = f"{x.shape} without axis {axis}"
        raise ProblemError(f"[softmax] got lengths of shape {lengths.shape}, expected {expected}")
    ends = build.reshape(lengths, kept_shape(x.shape, [axis]))
    first = up_to(build, x, ends, axis, math.copysign(math.inf, -temperature))
    y = softmax(build, first, around(x.shape, axis), temperature=temperature)
    return up_to(build, y, ends, axis, 0.0)


def hardmax(build: Build, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return 1 at the greatest element along an axis and 0 at the others; of equal ones the first has the 1.

    It is ONNX's operator of this name, the limit of `softmax` for large scales. No gradient passes.

    Parameters
    ----------
    x : Tensor
    sizes : sequence of int
        Elements before, of and after the axis, as `around` returns them.
    """
    rows = build.reshape(x, sizes)
    _, places = first_elements(build, rows, 1, 1)
    return build.reshape(marked(build, rows, places, 1), x.shape)
