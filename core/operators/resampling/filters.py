"""Tables of weights of the usual filters: where the new elements of an axis lie, and which old ones they mix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

METHODS = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "half_pixel_one",
    "align_corners",
    "asymmetric",
    "crop",
)
ROUNDINGS = ("prefer_floor", "prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Resampling:
    """How an axis gets another number of elements.

    Parameters
    ----------
    method : str
        ``nearest``, ``linear``, or ``cubic`` (Keys 1981).
    in_extent, out_extent : int
    scale : float
        About out_extent / in_extent.
    coordinates : str
        Where element o lies: ``half_pixel``: (o + 1/2) / scale - 1/2; ``half_pixel_one``: the same, but 0 for a single
        element; ``half_pixel_symmetric``: the same around the middle of the axis; ``align_corners``: o (in - 1) /
        (scale in - 1); ``asymmetric``: o / scale; ``crop``: from `start` to `stop`, shares of the axis.
    rounding : str
        Of ``nearest``.
    cubic : float
        Keys' coefficient a.
    antialias : bool
        Whether the filter grows as the axis shrinks.
    exclude_outside : bool
        Whether elements beyond the ends have no weight; otherwise the ends' elements stand for them.
    start, stop : float
        Of ``crop``.
    """

    method: str
    in_extent: int
    out_extent: int
    scale: float
    coordinates: str = "half_pixel"
    rounding: str = "prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    start: float = 0.0
    stop: float = 1.0

    def places(self) -> np.ndarray:
        """Return where the new elements lie among the old ones."""
        o, last, size = np.arange(self.out_extent, dtype=np.float64), self.in_extent - 1, self.out_extent
        length = self.scale * self.in_extent  # elements of the new axis, which ends within it
        if self.coordinates == "align_corners":
            return o * last / (length - 1) if size > 1 else o
        if self.coordinates == "asymmetric":
            return o / self.scale
        if self.coordinates == "crop":
            if size == 1:
                return np.array([(self.start + self.stop) * last / 2])
            return self.start * last + o * (self.stop - self.start) * last / (length - 1)
        places = (o + 0.5) / self.scale - 0.5
        if self.coordinates == "half_pixel_one" and size == 1:
            return np.zeros(1)
        if self.coordinates == "half_pixel_symmetric":
            places += self.in_extent / 2 * (1 - size / length)
        return places

    def outside(self) -> np.ndarray:
        """Return which new elements lie beyond the ends."""
        places = self.places()
        return (places < 0) | (places > self.in_extent - 1)

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the index (int32) and the weight (float64) of each tap, both (out_extent, taps)."""
        places, last = self.places(), self.in_extent - 1
        if self.method == "nearest":
            index = _rounded(places, self.rounding)
            return np.clip(index, 0, last).astype(np.int32)[:, None], np.ones((self.out_extent, 1))
        reach = 1 if self.method == "linear" else 2
        narrow = min(self.scale, 1.0) if self.antialias else 1.0
        first = math.floor(-reach / narrow) + 1
        low = np.floor(places)
        index = low[:, None] + np.arange(first, 2 - first)
        distance = np.abs(index - places[:, None]) * narrow
        weight = np.clip(1 - distance, 0, None) if reach == 1 else _keys(distance, self.cubic)
        if self.exclude_outside:
            weight = np.where((index < 0) | (index > last), 0, weight)
        total = weight.sum(1, keepdims=True)
        weight = np.divide(weight, total, out=np.zeros_like(weight), where=total != 0)
        return np.clip(index, 0, last).astype(np.int32), weight


def _rounded(places: np.ndarray, rounding: str) -> np.ndarray:
    if rounding in ("floor", "ceil"):
        return np.floor(places) if rounding == "floor" else np.ceil(places)
    return np.ceil(places - 0.5) if rounding == "prefer_floor" else np.floor(places + 0.5)


def _keys(distance: np.ndarray, a: float) -> np.ndarray:
    """Return the weights of cubic convolution (Keys 1981) at some distances."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
