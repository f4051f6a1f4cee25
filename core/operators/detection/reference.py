"""Overlaps of boxes and regions of interest in float64 with NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def overlaps(a: np.ndarray, b: np.ndarray, center: bool) -> float:
    """Return the intersection over union of two boxes."""
    corners = []
    for box in (a, b):
        if center:
            x, y, w, h = box
            corners.append((y - h / 2, x - w / 2, y + h / 2, x + w / 2))
        else:
            corners.append((min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])))
    (a0, a1, a2, a3), (b0, b1, b2, b3) = corners
    common = max(min(a2, b2) - max(a0, b0), 0) * max(min(a3, b3) - max(a1, b1), 0)
    union = (a2 - a0) * (a3 - a1) + (b2 - b0) * (b3 - b1) - common
    return float(common / union) if union > 0 else 0.0


def align(problem: Any, arrays: Mapping[str, np.ndarray], scale: float) -> np.ndarray:
    """Compute aligned regions from the definition, sample by sample."""
    x, rois = (np.asarray(arrays[name], np.float64) for name in ("x", "rois"))
    images = np.asarray(arrays["image"]).astype(int)
    height, width = problem.in_size
    y = np.zeros((problem.regions, problem.channels, *problem.out_size))
    shift = 0.5 if problem.half_pixel else 0.0
    for r, (left, top, right, bottom) in enumerate(rois * scale - shift):
        size = [bottom - top, right - left]
        if not problem.half_pixel:
            size = [max(s, 1.0) for s in size]
        bins = [s / o for s, o in zip(size, problem.out_size)]
        counts = [problem.samples or max(math.ceil(b), 0) for b in bins]
        for place in np.ndindex(*problem.out_size):
            values = []
            for sample in np.ndindex(*counts):
                at = [
                    begin + (p + (s + 0.5) / n) * b
                    for begin, p, s, n, b in zip((top, left), place, sample, counts, bins)
                ]
                values.append(_between(x[images[r]], at, (height, width), problem.operator == "max"))
            if not values:
                continue
            if problem.operator == "max":
                y[(r, slice(None), *place)] = np.concatenate(values, 1).max(1)
            else:
                y[(r, slice(None), *place)] = np.concatenate(values, 1).sum(1) / len(values)
    return y


def _between(image: np.ndarray, at: list[float], size: tuple[int, int], apart: bool) -> np.ndarray:
    """Return the weighted pixels around a place, (channels, 4), or their sum, (channels, 1)."""
    if any(not -1 <= a <= s for a, s in zip(at, size)):
        return np.zeros((len(image), 4 if apart else 1))
    low, high, share = [], [], []
    for a, s in zip(at, size):
        a = max(a, 0.0)
        first = min(int(a), s - 1)
        low.append(first)
        high.append(min(first + 1, s - 1))
        share.append(a - first if first < s - 1 else 0.0)
    (y, x), (v, w), (b, r) = low, high, share
    parts = [
        image[:, y, x] * (1 - b) * (1 - r),
        image[:, y, w] * (1 - b) * r,
        image[:, v, x] * b * (1 - r),
        image[:, v, w] * b * r,
    ]
    whole = np.stack(parts, 1)
    return whole if apart else whole.sum(1, keepdims=True)


def pooled(problem: Any, arrays: Mapping[str, np.ndarray], scale: float) -> np.ndarray:
    """Compute the largest pixels of the parts of regions from the definition, part by part."""
    x, rois = (np.asarray(arrays[name], np.float64) for name in ("x", "rois"))
    images = np.asarray(arrays["image"]).astype(int)
    y = np.zeros((problem.regions, problem.channels, *problem.out_size))
    places = rois * scale
    corners = (np.sign(places) * np.floor(np.abs(places) + 0.5)).astype(int)
    for r, (left, top, right, bottom) in enumerate(corners):
        sizes = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for place in np.ndindex(*problem.out_size):
            part = []
            for begin, p, size, count, limit in zip((top, left), place, sizes, problem.out_size, problem.in_size):
                low, high = begin + p * size // count, begin - (-(p + 1) * size // count)
                part.append(slice(min(max(low, 0), limit), min(max(high, 0), limit)))
            pixels = x[images[r]][(slice(None), *part)]
            if pixels.size:
                y[(r, slice(None), *place)] = pixels.max((1, 2))
    return y
