"""Deconvolution in float64 with NumPy: each input pixel adds its weights to the output, one tap at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def deconvolve(problem: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a deconvolution problem's result from its definition.

    Parameters
    ----------
    problem : DeconvProblem
        In any direction.
    arrays : mapping of str to numpy.ndarray
        The inputs by name, float64, of the problem's shapes.
    """
    p = problem
    if p.direction == "backward_bias":
        return arrays["dy"].sum(axis=(0, *range(2, arrays["dy"].ndim)))
    groups, inner, outer = p.groups, p.in_channels // p.groups, p.out_channels // p.groups
    pixels = int(np.prod(p.in_size))
    # without padding, what every tap of every pixel reaches, or the output if it ends later
    reach = [s * (i - 1) + d * (k - 1) + 1 for i, k, s, d in zip(p.in_size, p.kernel, p.stride, p.dilate)]
    whole = [max(r, b + o) for r, b, o in zip(reach, p.pad_begin, p.out_size)]
    y = np.zeros((p.batch, groups, outer, *whole))
    inside: Any = (..., *(slice(b, b + o) for b, o in zip(p.pad_begin, p.out_size)))
    if "dy" in arrays:
        y[inside] = arrays["dy"].reshape(p.batch, groups, outer, *p.out_size)
    x = arrays["x"].reshape(p.batch, groups, inner, pixels) if "x" in arrays else None
    w = arrays["w"].reshape(groups, inner, outer, *p.kernel) if "w" in arrays else None
    if p.direction == "forward":
        assert x is not None and w is not None
        for tap, at in _taps(p):
            y[at] += (w[tap].swapaxes(1, 2) @ x).reshape(p.batch, groups, outer, *p.in_size)
        found = y[inside].reshape(p.batch, p.out_channels, *p.out_size)
        return found + arrays["b"].reshape(-1, *(1,) * p.ndim) if "b" in arrays else found
    if p.direction == "backward_data":
        assert w is not None
        dx = np.zeros((p.batch, groups, inner, pixels))
        for tap, at in _taps(p):
            dx += w[tap] @ y[at].reshape(p.batch, groups, outer, pixels)
        return dx.reshape(p.batch, p.in_channels, *p.in_size)
    assert x is not None
    dw = np.zeros((groups, inner, outer, *p.kernel))
    for tap, at in _taps(p):
        dw[tap] = (x @ y[at].reshape(p.batch, groups, outer, pixels).swapaxes(2, 3)).sum(axis=0)
    return dw.reshape(p.in_channels, outer, *p.kernel)


def _taps(p: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each tap as an index of the weights, and the output pixels that it meets, one per input pixel."""
    for tap in itertools.product(*map(range, p.kernel)):
        windows = zip(tap, p.dilate, p.in_size, p.stride)
        yield (..., *tap), (..., *(slice(t * d, t * d + (i - 1) * s + 1, s) for t, d, i, s in windows))
