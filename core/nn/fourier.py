"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import math

import numpy as np


def matrix(length: int, outputs: int, parts: int) -> np.ndarray:
    """Return the matrix (length * parts, outputs * 2) of a transform, for real (1 part) or complex numbers (2)."""
    angle = -2 * math.pi * (np.outer(np.arange(length), np.arange(outputs)) % length) / length
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.stack([cosine, sine], 2).reshape(length, 2 * outputs)
    if parts == 1:
        return real
    imaginary = np.stack([-sine, cosine], 2).reshape(length, 2 * outputs)
    return np.stack([real, imaginary], 1).reshape(2 * length, 2 * outputs)
