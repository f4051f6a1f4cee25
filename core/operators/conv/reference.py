"""Convolution in float64 by NumPy, fast enough to judge candidates at full size: one product of matrices per tap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def convolve(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a convolution problem's result from its definition.

    Parameters
    ----------
    problem : ConvProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    """
    p = problem
    if p.direction == "backward_bias":
        return arrays["dy"].sum(axis=(0, *range(2, arrays["dy"].ndim)))
    groups, out, inner = p.groups, p.out_channels // p.groups, p.in_channels // p.groups
    pads = list(zip(p.pad_begin, p.pad_end))
    padded = [i + b + e for i, (b, e) in zip(p.in_size, pads)]
    x = np.zeros((p.batch, groups, inner, *padded))
    inside: Any = (..., *(slice(b, b + i) for (b, _), i in zip(pads, p.in_size)))
    if "x" in arrays:
        x[inside] = arrays["x"].reshape(p.batch, groups, inner, *p.in_size)
    w = arrays["w"].reshape(groups, out, inner, *p.kernel) if "w" in arrays else None
    pixels = int(np.prod(p.out_size))
    if p.direction == "forward":
        assert w is not None
        y = np.zeros((p.batch, groups, out, pixels))
        for tap, at in _taps(p):
            y += w[tap] @ x[at].reshape(p.batch, groups, inner, pixels)
        y = y.reshape(p.batch, p.out_channels, *p.out_size)
        return y + arrays["b"].reshape(-1, *(1,) * p.ndim) if "b" in arrays else y
    dy = arrays["dy"].reshape(p.batch, groups, out, pixels)
    if p.direction == "backward_data":
        assert w is not None
        for tap, at in _taps(p):
            part = w[tap].swapaxes(1, 2) @ dy
            x[at] += part.reshape(p.batch, groups, inner, *p.out_size)
        return x[inside].reshape(p.batch, p.in_channels, *p.in_size)
    dw = np.zeros((groups, out, inner, *p.kernel))
    for tap, at in _taps(p):
        columns = x[at].reshape(p.batch, groups, inner, pixels)
        dw[tap] = (dy @ columns.swapaxes(2, 3)).sum(axis=0)
    return dw.reshape(p.out_channels, inner, *p.kernel)


def _taps(p: Any) -> Iterator[tuple[Any, Any]]:
    """Return each tap as an index of the weights, and the padded input's pixels that it meets."""
    for tap in itertools.product(*map(range, p.kernel)):
        windows = zip(tap, p.dilate, p.out_size, p.stride)
        yield (..., *tap), (..., *(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in windows))
