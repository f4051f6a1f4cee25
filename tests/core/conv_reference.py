"""Convolution in float64 with numpy: what every convolution kernel is compared with.

One loop over the taps; each tap is one strided view of the padded input and one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from clgraft.core.operators.conv.problem import ConvProblem


def forward(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, problem: ConvProblem) -> np.ndarray:
    """Compute y of shape (batch, out_channels, *out_size) from x, w and, unless None, the bias b."""
    padded, weights = _padded(x, problem), _grouped_weights(w, problem)
    y = np.zeros((problem.batch, problem.groups, problem.out_channels // problem.groups, *problem.out_size))
    for tap, view in _taps(problem):
        y += np.einsum("ngc...,goc->ngo...", padded[view], weights[(..., *tap)], optimize=True)
    y = y.reshape(problem.batch, problem.out_channels, *problem.out_size)
    if b is not None:
        y += np.asarray(b, np.float64).reshape(-1, *(1,) * problem.ndim)
    return y


def backward_data(dy: np.ndarray, w: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """Compute dx of shape (batch, in_channels, *in_size), the gradient of sum(y * dy) for x."""
    gradient, weights = _grouped_output(dy, problem), _grouped_weights(w, problem)
    dx = _padded(np.zeros((problem.batch, problem.in_channels, *problem.in_size)), problem)
    for tap, view in _taps(problem):
        dx[view] += np.einsum("ngo...,goc->ngc...", gradient, weights[(..., *tap)], optimize=True)
    inside = tuple(slice(p, p + i) for p, i in zip(problem.pad_begin, problem.in_size))
    return dx[(..., *inside)].reshape(problem.batch, problem.in_channels, *problem.in_size)


def backward_filter(x: np.ndarray, dy: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """Compute dw of shape (out_channels, in_channels / groups, *kernel), the gradient of sum(y * dy) for w."""
    padded, gradient = _padded(x, problem), _grouped_output(dy, problem)
    groups = problem.groups
    dw = np.zeros((groups, problem.out_channels // groups, problem.in_channels // groups, *problem.kernel))
    axes = "xyz"[: problem.ndim]
    for tap, view in _taps(problem):
        dw[(..., *tap)] = np.einsum(f"ngo{axes},ngc{axes}->goc", gradient, padded[view], optimize=True)
    return dw.reshape(problem.out_channels, problem.in_channels // groups, *problem.kernel)


def _padded(x: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """Give x with its padding as (batch, groups, channels of a group, *padded size)."""
    pads = [(0, 0), (0, 0), *zip(problem.pad_begin, problem.pad_end)]
    x = np.pad(np.asarray(x, np.float64), pads)
    return x.reshape(problem.batch, problem.groups, problem.in_channels // problem.groups, *x.shape[2:])


def _grouped_weights(w: np.ndarray, problem: ConvProblem) -> np.ndarray:
    return np.asarray(w, np.float64).reshape(problem.groups, problem.out_channels // problem.groups, *w.shape[1:])


def _grouped_output(y: np.ndarray, problem: ConvProblem) -> np.ndarray:
    channels = problem.out_channels // problem.groups
    return np.asarray(y, np.float64).reshape(problem.batch, problem.groups, channels, *problem.out_size)


def _taps(problem: ConvProblem) -> Iterator[tuple[tuple[int, ...], tuple]]:
    """Give each tap with the index of the padded input's pixels that it meets, one for each output pixel."""
    for tap in product(*(range(k) for k in problem.kernel)):
        starts = (t * d for t, d in zip(tap, problem.dilate))
        pixels = (
            slice(start, start + (size - 1) * stride + 1, stride)
            for start, size, stride in zip(starts, problem.out_size, problem.stride)
        )
        yield tap, (Ellipsis, *pixels)
