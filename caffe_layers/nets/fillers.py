"""Caffe's fillers with NumPy's random numbers: the distributions are Caffe's, the numbers are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FAN_OUT, AVERAGE = 1, 2  # values of `variance_norm`


def drawn(rng: np.random.Generator, shape: tuple[int, ...], filler: Any) -> np.ndarray:
    """Return an array filled with random numbers, or with the weights of bilinear interpolation.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int
    filler : FillerParameter
        Of a type that `clgraft.caffe_layers.layers.fillers` knows.
    """
    count, first = math.prod(shape), shape[0] if shape else 1
    if filler.type == "uniform":
        return rng.uniform(filler.min, filler.max, shape).astype(np.float32)
    if filler.type == "gaussian":
        found = rng.normal(filler.mean, filler.std, shape)
        if filler.sparse >= 0:
            found *= rng.random(shape) < filler.sparse / max(1, first)
        return found.astype(np.float32)
    if filler.type == "positive_unitball":
        found = rng.random((first, count // max(1, first)))
        return (found / found.sum(1, keepdims=True)).reshape(shape).astype(np.float32)
    if filler.type == "bilinear":
        size = shape[3]
        half = math.ceil(size / 2)
        center = (2 * half - 1 - half % 2) / (2 * half)
        line = 1 - np.abs(np.arange(size) / half - center)
        return np.broadcast_to(np.outer(line, line), shape).astype(np.float32)
    if filler.type == "constant":
        return np.full(shape, filler.value, np.float32)
    fan_in, fan_out = count / max(1, first), count / shape[1] if len(shape) > 1 else count
    fan = {FAN_OUT: fan_out, AVERAGE: (fan_in + fan_out) / 2}.get(filler.variance_norm, fan_in)
    if filler.type == "xavier":
        bound = math.sqrt(3 / fan)
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    return rng.normal(0, math.sqrt(2 / fan), shape).astype(np.float32)  # msra
