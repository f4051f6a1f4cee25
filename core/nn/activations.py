"""Activations: the problems of functions of one element, of their gradients, and of rectifiers with learned slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import FACTOR, SELECT, SLOPE_GRADIENTS, Function, find
from clgraft.core.nn.elementwise import Combination, combined
from clgraft.core.nn.expressions import evaluated
from clgraft.core.nn.formulas import assigned, renamed, split
from clgraft.core.operators.dropout import DropoutProblem
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction


def forward(name: str, shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 -> y0 of a function.

    Parameters
    ----------
    name : str
        A key of `element_functions.ACTIVATIONS`.
    shape : sequence of int
        Of x and y; y may be x's own memory.
    dtype : str

    Returns
    -------
    PointwiseProblem
        Its scalars are the function's, in order.
    """
    found = find(name)
    before, value = split(found.value)
    text = f"real x = x0; {before}y0 = {value};"
    return PointwiseProblem((tuple(shape),), text, (), tuple(found.scalars), dtype=dtype)


def backward(name: str, shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem of a function's gradient, by `element_functions.FACTOR`.

    Returns
    -------
    PointwiseProblem
        x0 is dy, x1 and so on are what the reads of its `Function` list; y0 is dx, which may be dy's own memory.
        The scalars are the function's.
    """
    found = find(name)
    loads = "".join(f"real {tensor} = x{i}; " for i, tensor in enumerate(found.reads, 1))
    before, gradient = split(found.gradient())
    text = f"{loads}{before}y0 = {renamed(gradient, {'dy': 'x0'})};"
    shapes = (tuple(shape),) * (1 + len(found.reads))
    return PointwiseProblem(shapes, text, (), tuple(found.scalars), dtype=dtype)


def _slope_shape(shape: Sequence[int], axis: int, shared: bool, own: Sequence[int]) -> tuple[int, ...]:
    if own:
        return tuple(own)
    if not -len(shape) <= axis < len(shape):
        raise ProblemError(f"[activation] got axis {axis}, expected one of a shape {tuple(shape)}")
    axis %= len(shape)
    return (1,) if shared else (shape[axis],) + (1,) * (len(shape) - axis - 1)


def prelu_forward(
    shape: Sequence[int], axis: int = 1, shared: bool = False, dtype: str = "float32", slope: Sequence[int] = ()
) -> PointwiseProblem:
    """Return the problem x0 = x, x1 = slope -> y0 of a rectifier with learned slopes.

    Parameters
    ----------
    shape : sequence of int
        Of x.
    axis : int
        The axis with a slope each.
    shared : bool
        One slope for all.
    slope : sequence of int, optional
        The slopes' own shape, which broadcasts to x's.
    """
    text = renamed(find("leaky_relu").value, {"x": "x0", "slope": "x1"})
    return PointwiseProblem((tuple(shape), _slope_shape(shape, axis, shared, slope)), f"y0 = {text};", dtype=dtype)


def prelu_backward(
    shape: Sequence[int], axis: int = 1, shared: bool = False, dtype: str = "float32", slope: Sequence[int] = ()
) -> PointwiseProblem:
    """Return the problem x0 = dy, x1 = x, x2 = slope -> y0 = dx, y1 = dslope, by `SELECT`; at 0 the slope counts."""
    slopes, names = _slope_shape(shape, axis, shared, slope), {"dy": "x0", "x": "x1", "slope": "x2"}
    dx, dslope = (renamed(text, names) for text in (find("leaky_relu").gradient(SELECT), SLOPE_GRADIENTS[SELECT]))
    shapes, folds = (tuple(shape), tuple(shape), slopes), (None, Reduction("sum", shape=slopes))
    return PointwiseProblem(shapes, f"y0 = {dx}; y1 = {dslope};", folds, dtype=dtype)


def activated(build: Build, x: Tensor, name: str, scalars: Sequence[float] = ()) -> Tensor:
    """Return a function of every element; its scalars are given in their order."""
    first, problem = build.here, forward(name, x.shape, x.dtype)
    numbers = dict(zip(problem.scalars(), scalars))
    (y,) = build.add(problem, x, scalars=numbers)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        read = ({"x": x, "y": y}[tensor] for tensor in find(name).reads)
        return build.add(backward(name, x.shape, x.dtype), dy, *read, scalars=numbers)

    build.state_gradient(first, (x,), (y,), gradient)
    return y


def applied(build: Build, x: Tensor, function: Function, way: str = FACTOR) -> Tensor:
    """Return a function of every element, whose gradient is by one of `element_functions.WAYS`.

    Where y takes the memory of x and may stand for it, the gradient reads y: nobody has to keep x.
    """
    first, flat = build.here, build.reshape(x, (x.size,))
    (y,) = evaluated(build, assigned("y", function.value), {"x": flat}, {"y": None}, function.scalars)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        stands = build.overwritten == x.name and way in function.y_for_x
        known = {"x": y if stands else flat, "y": y, "dy": dy}
        return evaluated(build, assigned("dx", function.gradient(way)), known, {"dx": None}, function.scalars)

    build.state_gradient(first, (x,), (y,), gradient)
    return build.reshape(y, x.shape)


def prelu(build: Build, x: Tensor, slope: Tensor, axis: int = 1) -> Tensor:
    """Return a rectifier with learned slopes.

    There is one for each place of an axis, one for all, one for each element, or several of as many axes as x, which
    broadcast to its shape.
    """
    each = slope.shape == x.shape  # a slope for each element is one for each place of a vector
    view = (x.size,) if each else x.shape
    along, shared, first = 0 if each else axis, slope.shape == (1,), build.here
    own = slope.shape if slope.ndim == x.ndim > 1 and not each else ()
    (y,) = build.add(prelu_forward(view, along, shared, x.dtype, own), x, slope)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        unwanted = [name for name, asked in zip(("y0", "y1"), wanted) if not asked]
        problem = prelu_backward(view, along, shared, x.dtype, own)
        found = build.add(problem, dy, x, slope, unwanted=unwanted)
        return tuple(one if asked else None for one, asked in zip(found, wanted))

    build.state_gradient(first, (x, slope), (y,), gradient)
    return build.reshape(y, x.shape)


def slopes_from_front(slope: Sequence[int], x: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of slopes as it broadcasts to that of x with its axes among the first two; None if it does not.

    So has MXNet them: a vector is one number for each channel, whatever axes follow.
    """
    left, found = list(slope), []
    for axis in reversed(range(len(x))):
        fits = axis <= 1 and left and left[-1] in (1, x[axis])
        found.append(left.pop() if fits else 1)
    return None if left else tuple(reversed(found))


def prelu_along(build: Build, x: Tensor, slope: Tensor, axis: int, way: str) -> Tensor:
    """Return a rectifier with a learned slope for each place of an axis, or one for all.

    One problem computes the gradients that are wanted, by one of the ways of `SLOPE_GRADIENTS`.
    """
    rectifier = find("leaky_relu")
    gradients = {"x": rectifier.gradient(way), "slope": SLOPE_GRADIENTS[way]}
    view = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    values = {"x": build.reshape(x, view), "slope": build.reshape(slope, (1, slope.size, 1))}
    return build.reshape(combined(build, Combination(rectifier.value, gradients), values), x.shape)


def random_slopes(build: Build, x: Tensor, key: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return a rectifier whose slopes are random between bounds when training, and else their mean."""
    if not build.training:
        return activated(build, x, "leaky_relu", (sum(bounds) / 2,))
    problem = DropoutProblem("forward", "rrelu", x.shape, dtype=x.dtype)
    return build.add(problem, x, key, scalars=dict(zip(problem.scalars(), bounds)))[0]
