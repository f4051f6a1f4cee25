"""Random factors of elements, which follow from a key."""

from __future__ import annotations

from collections.abc import Collection

from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.shapes import moved_alike
from clgraft.core.operators.dropout import KEY_WORDS, DropoutProblem
from clgraft.core.operators.pointwise import PointwiseProblem


def key(build: Build, number: int) -> Tensor:
    """Return the key of a number: an input of the graph, which differs from step to step."""
    return build.input(f"key{number}", (KEY_WORDS,), "int32")


def dropout(build: Build, x: Tensor, key: Tensor, rate: float, shared: Collection[int] = ()) -> Tensor:
    """Return each element times 1 / (1 - rate), or with the probability `rate` times 0 (Srivastava et al. 2014).

    Parameters
    ----------
    x : Tensor
    key : Tensor
        Four words of int32 from which the random numbers follow; the gradient draws them again.
    rate : float
    shared : collection of int, optional
        Axes along which elements share a random number.
    """
    mask = tuple(1 if axis in shared else size for axis, size in enumerate(x.shape))
    problem = DropoutProblem("forward", "dropout", x.shape, mask, x.dtype)
    scalars = dict(zip(problem.scalars(), keep_and_scale(rate)))
    return build.add(problem, x, key, scalars=scalars)[0]


def keep_and_scale(rate: float) -> tuple[float, float]:
    """Return the probability with which `dropout` keeps an element, and what it multiplies those by."""
    keep = 1 - rate
    return keep, 1 / keep if keep else 0.0


def kept(build: Build, x: Tensor, key: Tensor, rate: float) -> Tensor:
    """Return numbers that are 0 where `dropout` drops an element of x, and positive elsewhere."""
    return dropout(build, build.pointwise("y0 = 1 + 0 * x0;", [x])[0], key, rate)


def same(build: Build, x: Tensor) -> Tensor:
    """Return the elements as a value of its own; its gradient is one as well."""
    return moved_alike(build, PointwiseProblem((x.shape,), "y0 = x0;", dtype=x.dtype), x, x.shape)
