"""Pooling and its gradients from their definitions, window by window, for the checks of the core."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

# shapes with {} for the dtype's word: overlap, windows that share nothing, beyond the edge, the whole image, one axis
SHAPES = (
    "max {}n2 c5 ih11 iw13 kh3 kw3 sh2 sw2 ph1 pw1",
    "max {}n2 c3 ih9 iw8 kh2 kw2 sh2 sw2 ceil",
    "max {}n2 c7 iw29 kw3 pw1",
    "average {}n2 c5 ih9 iw11 kh3 kw3 ph1 pw1",
    "average {}n2 c5 ih10 iw12 kh3 kw3 sh2 sw2 ph1 pw1 count_inside",
    "average {}n2 c37 ih7 iw7 kh7 kw7",
    "sum {}n2 c3 ih8 iw8 kh2 kw3 sh2 sw1",
    "lp2 {}n2 c3 ih8 iw9 kh3 kw2 sh2 sw1",
)


def pooling(problem: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Give y or dx; ``given`` holds float64 arrays.

    A gradient through a maximum belongs to the first value of the window, row by row, that is equal to y.
    """
    shape = (problem.batch, problem.channels)
    if problem.direction == "forward":
        y: Any = np.zeros((*shape, *problem.out_size))
        for place, part, divisor in _windows(problem):
            held = given["x"][part].reshape(*shape, -1)
            y[place] = _value(problem.operator, held, divisor)
        return {"y": y}
    dx = np.zeros((*shape, *problem.in_size))
    for place, part, divisor in _windows(problem):
        dy = given["dy"][place][..., None]
        size = dx[part].shape
        held = given["x"][part].reshape(*shape, -1) if "x" in given else np.ones((*shape, math.prod(size[2:])))
        y = given["y"][place][..., None] if "y" in given else None
        dx[part] += (dy * _slope(problem.operator, held, y, divisor)).reshape(size)
    return {"dx": dx}


def arrays(problem: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Give a direction's inputs; y has to be that of x, and few different values make windows with two maxima."""
    shape = (problem.batch, problem.channels, *problem.in_size)
    x = rng.integers(-3, 4, shape) if problem.operator == "max" else rng.uniform(-1, 1.5, shape)
    x = x.astype(problem.dtype)
    names = [argument.name for argument in problem.arguments() if argument.role == "in"]
    given = {"x": x}
    if problem.direction == "backward":
        forward = dataclasses.replace(problem, direction="forward")
        given["y"] = pooling(forward, {"x": x.astype(np.float64)})["y"].astype(problem.dtype)
        given["dy"] = rng.uniform(-1, 1.5, given["y"].shape).astype(problem.dtype)
    return {name: given[name] for name in names}


def _value(operator: str, held: Any, divisor: int) -> Any:
    if operator == "max":
        return held.max(2)
    if operator in ("average", "sum"):
        return held.sum(2) / (divisor if operator == "average" else 1)
    power = int(operator[2:])
    return (held**power).sum(2) ** (1 / power)


def _slope(operator: str, held: Any, y: Any, divisor: int) -> Any:
    if operator == "max":
        equal = held == y
        return equal & (np.cumsum(equal, 2) == 1)
    if operator in ("average", "sum"):
        return np.ones_like(held) / (divisor if operator == "average" else 1)
    return (held / y) ** (int(operator[2:]) - 1)


def _windows(problem: Any) -> Iterator[tuple[Any, Any, int]]:
    """Give the indices of every window in y, and of what it holds in x, and what an average divides by."""
    for place in itertools.product(*map(range, problem.out_size)):
        part: list[slice] = []
        divisor = 1
        for at, size, kernel, stride, begin_pad, end_pad in zip(
            place, problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.pad_end
        ):
            first = at * stride - begin_pad
            inside = slice(max(first, 0), min(first + kernel, size))
            part.append(inside)
            counted = min(first + kernel, size + end_pad) - first
            divisor *= counted if problem.count_padding else inside.stop - inside.start
        yield (..., *place), (..., *part), divisor
