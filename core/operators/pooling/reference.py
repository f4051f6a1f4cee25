"""Pooling and its gradients in float64 with NumPy: each place of the window is one strided view of the input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

# what a maximum starts from
LOWEST: dict[str, float] = {
    "float32": -float(np.finfo("f4").max),
    "float64": -float(np.finfo("f8").max),
    "float16": -float(np.finfo("f2").max),
}
LOWEST["bfloat16"] = -float.fromhex("0x1.fep127")

NOWHERE = 255  # the argmax of a window that holds nothing


def pool(problem: Any, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Compute a pooling problem's results from their definition.

    Parameters
    ----------
    problem : PoolProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.

    Notes
    -----
    The gradient of a maximum belongs to the first value of the window, in memory order, that is equal to y.
    """
    with np.errstate(all="ignore"):
        if problem.direction == "forward_argmax":
            y = _forward(problem, arrays)
            return y, _argmax(problem, arrays["x"], y)
        directions = {
            "forward": _forward,
            "backward": _backward,
            "backward_argmax": _backward_argmax,
            "mask": _mask,
        }
        return (directions[problem.direction](problem, arrays),)


def _forward(p: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    maximum = p.operator == "max"
    lowest = float(LOWEST[p.dtype]) if maximum else 0.0
    x = _padded(p, arrays["x"], lowest)
    y = np.full((p.batch, p.channels, *p.out_size), lowest)
    power = int(p.operator[2:]) if p.operator.startswith("lp") else 1
    for at in _places(p):
        taken = (x[at] > y) | (p.keep_nan & np.isnan(x[at]))
        y = np.where(taken, x[at], y) if maximum else y + x[at] ** power
    if p.operator == "average":
        return y / _divisors(p)
    return np.cbrt(y) if power == 3 else y ** (1 / power) if power == 2 else y


def _backward(p: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    dy = arrays["dy"] / _divisors(p) if p.operator == "average" else arrays["dy"]
    dx = _padded(p, np.zeros((p.batch, p.channels, *p.in_size)), 0.0)
    if p.operator == "max":
        x, free = _padded(p, arrays["x"], np.nan), np.ones(dy.shape, bool)
        for at in _places(p):  # NaN is equal to nothing, so padding gets no gradient
            hit = free & (x[at] == arrays["y"])
            dx[at] += np.where(hit, dy, 0)
            free &= ~hit
    elif p.operator in ("lp2", "lp3"):
        x, power = _padded(p, arrays["x"], 0.0), int(p.operator[2:]) - 1
        for at in _places(p):
            dx[at] += np.where(arrays["y"] == 0, 0, dy * (x[at] / arrays["y"]) ** power)
    else:
        for at in _places(p):
            dx[at] += dy
    return dx[_inside(p)]


def _argmax(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, argmax = _padded(p, x, np.nan), np.full(y.shape, NOWHERE, np.uint8)
    for number, at in enumerate(_places(p)):
        argmax[(argmax == NOWHERE) & (x[at] == y)] = number
    return argmax


def _backward_argmax(p: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    dx = _padded(p, np.zeros((p.batch, p.channels, *p.in_size)), 0.0)
    for number, at in enumerate(_places(p)):
        dx[at] += np.where(arrays["argmax"] == number, arrays["dy"], 0)
    return dx[_inside(p)]


def _mask(p: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    x = _padded(p, arrays["x"], np.nan)
    plane = np.arange(np.prod(p.in_size), dtype=np.float64).reshape(1, 1, *p.in_size)
    places = _padded(p, np.broadcast_to(plane, (1, 1, *p.in_size)), -1.0)
    mask = np.full(arrays["y"].shape, -1.0)
    for at in _places(p):  # a window whose maximum is the lowest number holds nothing
        hit = (mask < 0) & (x[at] == arrays["y"]) & (arrays["y"] > LOWEST[p.dtype])
        mask = np.where(hit, places[at], mask)
    return mask


def _inside(p: Any) -> Any:
    """Return the index of the input within what `_padded` returns."""
    return (..., *(slice(b, b + i) for b, i in zip(p.pad_begin, p.in_size)))


def _padded(p: Any, x: np.ndarray, fill: float) -> np.ndarray:
    """Return x surrounded by a number, as far as any window reaches."""
    ends = (
        max(b + i, (o - 1) * s + k) for b, i, o, s, k in zip(p.pad_begin, p.in_size, p.out_size, p.stride, p.kernel)
    )
    padded = np.full((*x.shape[:2], *ends), fill)
    padded[_inside(p)] = x
    return padded


def _places(p: Any) -> Iterator[Any]:
    """Yield each place of the window, as the index of what all windows have there in the padded input."""
    for place in itertools.product(*map(range, p.kernel)):
        yield (..., *(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(place, p.out_size, p.stride)))


def _divisors(p: Any) -> np.ndarray:
    """Return what each average divides by: the window's elements within the padded input, or within the input."""
    divisors = np.ones(())
    for i, k, s, b, e, o in zip(p.in_size, p.kernel, p.stride, p.pad_begin, p.pad_end, p.out_size):
        first = np.arange(o) * s - b
        if p.count_padding:
            counted = np.minimum(first + k, i + e) - first
        else:
            counted = np.minimum(first + k, i) - np.maximum(first, 0)
        divisors = np.multiply.outer(divisors, np.maximum(counted, 1))
    return divisors
