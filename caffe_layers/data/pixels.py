"""Images of bytes in another size, by the rule of OpenCV's bilinear interpolation, with which Caffe reads images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ONE = 2048  # a weight of 1
HALF, SUM_BITS, PRODUCT_BITS, LAST_BITS = 2, 4, 16, 2


def resized(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Return an image (channels, height, width) of bytes with another height and width.

    Notes
    -----
    Weights are multiples of 1 / 2048, and sums are cut off as OpenCV's `resize` does it for bytes, so that results are
    equal. No pixel is averaged that is not next to a result's place; but at half the height and width, where each is
    the mean of four.
    """
    height, width = image.shape[1:]
    if (height, width) == (2 * size[0], 2 * size[1]):
        parts = image.reshape(len(image), size[0], 2, size[1], 2).astype(np.int32)
        return ((parts.sum((2, 4)) + HALF) >> LAST_BITS).astype(np.uint8)
    left, shares = _places(width, size[1])
    inside = (left >= 0) & (left < width - 1)
    shares = np.where(inside, shares, np.float32(0))
    left = left.clip(0, width - 1)
    wide = image.astype(np.int32)
    rows = wide[:, :, left] * _weights(1 - shares) + wide[:, :, (left + 1).clip(0, width - 1)] * _weights(shares)
    rows >>= SUM_BITS
    top, shares = _places(height, size[0])
    upper, lower = (
        (rows[:, (top + step).clip(0, height - 1)] * _weights(share)[:, None]) >> PRODUCT_BITS
        for step, share in enumerate((1 - shares, shares))
    )
    return ((upper + lower + HALF) >> LAST_BITS).astype(np.uint8)


def _places(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each place of an axis the pixel before it, and how far after that it is."""
    scale = 1 / (target / source)
    places = ((np.arange(target) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(places)
    return first.astype(np.int64), places - first


def _weights(shares: np.ndarray) -> np.ndarray:
    return np.rint(shares * np.float32(ONE)).astype(np.int32)
