"""Fourier transforms as products with constant matrices, and the frames of short ones."""

from __future__ import annotations

import math

import numpy as np

from clgraft.core.nn import products
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.indices import gathered
from clgraft.core.nn.shapes import inverse_order, permuted


def output_count(length: int, *, onesided: bool) -> int:
    """Return how many numbers a transform has; those of real numbers repeat after one more than the half."""
    return length // 2 + 1 if onesided else length


def frame_index(size: int, length: int, stride: int) -> np.ndarray:
    """Return which elements of a signal are in each of its frames: (frames, length), as int64."""
    frames = (size - length) // stride + 1
    return np.arange(frames, dtype=np.int64)[:, None] * stride + np.arange(length, dtype=np.int64)


def matrix(length: int, outputs: int, parts: int) -> np.ndarray:
    """Return the matrix (length * parts, outputs * 2) of a transform, for real (1 part) or complex numbers (2)."""
    angle = -2 * math.pi * (np.outer(np.arange(length), np.arange(outputs)) % length) / length
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.stack([cosine, sine], 2).reshape(length, 2 * outputs)
    if parts == 1:
        return real
    imaginary = np.stack([-sine, cosine], 2).reshape(length, 2 * outputs)
    return np.stack([real, imaginary], 1).reshape(2 * length, 2 * outputs)


def transformed(build: Build, x: Tensor, axis: int, outputs: int) -> Tensor:
    """Return the first numbers of the transforms of real or complex numbers along an axis, as (..., 2).

    Parameters
    ----------
    x : Tensor
        (..., 1), or (..., 2) with real and imaginary parts.
    axis : int
        Not the last one.
    """
    others = [other for other in range(x.ndim - 1) if other != axis]
    order = (*others, axis, x.ndim - 1)
    moved = permuted(build, x, order)
    y = _product(build, moved, math.prod(moved.shape[:-2]), outputs)
    return permuted(build, build.reshape(y, (*moved.shape[:-2], outputs, 2)), inverse_order(order))


def transformed_frames(
    build: Build, x: Tensor, length: int, stride: int, outputs: int, window: Tensor | None = None
) -> Tensor:
    """Return the transforms of frames of signals (signals, size, 1 or 2) as (signals, frames, outputs, 2).

    Parameters
    ----------
    length, stride : int
        Of the frames, and from one to the next.
    window : Tensor, optional
        Factors (length,) of each frame.
    """
    signals, size, parts = x.shape
    index = frame_index(size, length, stride)
    shape = (signals, *index.shape, parts)
    cut = gathered(build, x, build.constant(index.astype(np.int32)), 1, shape, count=index.size)
    if window is not None:
        (cut,) = build.pointwise("y0 = x0 * x1;", [cut, build.reshape(window, (length, 1))])
    y = _product(build, cut, signals * len(index), outputs)
    return build.reshape(y, (signals, len(index), outputs, 2))


def _product(build: Build, x: Tensor, rows: int, outputs: int) -> Tensor:
    """Return rows of numbers (..., length, parts) times the matrix of their transforms."""
    length, parts = x.shape[-2:]
    table = build.constant(matrix(length, outputs, parts).astype(x.dtype))
    return products.matmul(build, build.reshape(x, (rows, length * parts)), table)
