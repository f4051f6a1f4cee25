"""Fourier transforms as products with constant matrices, and the frames of short ones."""

from __future__ import annotations

import math

import numpy as np


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
