"""Images of another size: interpolation, and averages of windows that differ in size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.nn import resizing
from clgraft.core.operators.resampling import ResampleProblem
from clgraft.core.problem import ceil_div
from clgraft.plugins.torch import operators
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

KINDS = {  # mode -> method, coordinates, rounding
    "nearest": ("nearest", "asymmetric", "floor"),
    "nearest-exact": ("nearest", "half_pixel", "prefer_ceil"),
    "linear": ("linear", "half_pixel", "prefer_floor"),
}


def _words(pixels: Sequence[int], size: Sequence[int], mode: str, align: bool) -> tuple[str, str, str]:
    """Return the method, the coordinates and the rounding of a mode."""
    if min(*pixels, *size) < 1:
        raise NotLowered(f"[torch] got images of {list(pixels)} pixels to resize to {list(size)}, expected pixels")
    method, coordinates, rounding = KINDS[mode]
    return method, "align_corners" if align and mode == "linear" else coordinates, rounding


@lowers(operators.resize)
def resize(build: Builder, x: Operand, size: Sequence[int], mode: str, align: bool) -> Operand:
    """Return images of a size."""
    words = _words(x.shape[2:], size, mode, align)
    return build.taken(resizing.resized(build.nn, build.given(x), size, *words))  # type: ignore[no-any-return]


@lowers(operators.resize_backward)
def resize_backward(build: Builder, dy: Operand, shape: Sequence[int], mode: str, align: bool) -> Operand:
    """Return the gradient of `resize`."""
    words = _words(shape[2:], dy.shape[2:], mode, align)
    found = resizing.resized_gradient(build.nn, build.given(dy), shape, *words)
    return build.taken(found)  # type: ignore[no-any-return]


def adaptive_averages(build: Builder, x: Operand, size: Sequence[int]) -> Operand:
    """Return averages of windows that share pixels where the number of pixels is no multiple of theirs."""
    for axis, count in enumerate(size, len(x.shape) - len(size)):
        x = _weighted(build, x, axis, _shares(x.shape[axis], count))
    return x


def adaptive_averages_backward(build: Builder, dy: Operand, pixels: Sequence[int]) -> Operand:
    """Return the gradient of `adaptive_averages`."""
    for axis, count in enumerate(pixels, len(dy.shape) - len(pixels)):
        dy = _weighted(build, dy, axis, _shares(count, dy.shape[axis]).T)
    return dy


def _shares(pixels: int, windows: int) -> np.ndarray:
    """Return the weight of each pixel in the average of each window, (windows, pixels)."""
    table = np.zeros((windows, pixels))
    for i in range(windows):
        begin, end = i * pixels // windows, ceil_div((i + 1) * pixels, windows)
        table[i, begin:end] = 1 / (end - begin)
    return table


def _weighted(build: Builder, x: Operand, axis: int, table: np.ndarray) -> Operand:
    """Return the sums of elements along an axis with the weights of a table, of which most are 0."""
    if not x.size * table.size:
        raise NotLowered(f"[torch] got shape {x.shape} to average, expected elements")
    taps = int((table != 0).sum(1).max())
    index = np.argsort(table == 0, axis=1, kind="stable")[:, :taps].astype(np.int32)
    weight = np.take_along_axis(table, index, 1)
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    problem = ResampleProblem(outer, x.shape[axis], len(table), inner, taps, x.dtype)
    shape = (*x.shape[:axis], len(table), *x.shape[axis + 1 :])
    values = {a.name: v.astype(a.dtype) for a, v in zip(problem.arguments()[1:3], (index, weight))}
    reads = {name: build.constant(name, value) for name, value in values.items()}
    return build.run(problem, {"x": x, **reads}, shapes={"y": shape})["y"]
