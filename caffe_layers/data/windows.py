"""Caffe's WindowData: parts of images around boxes, some of objects and some of backgrounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clgraft.caffe_layers.data.pixels import resized
from clgraft.caffe_layers.data.transform import mean_of
from clgraft.core.model import ModelError

COLOURS = 3
SHIFTED = 2  # (mean's size - crop_size) / SHIFTED is where the mean's central part begins


@dataclass(frozen=True)
class Window:
    """A box in an image.

    Attributes
    ----------
    image : int
        Its number in the file.
    label : int
        0 for a background.
    corners : tuple of int
        Left, top, right and bottom; the last pixels belong to it.
    """

    image: int
    label: int
    corners: tuple[int, int, int, int]


class Windows(NamedTuple):
    """What a window file lists: paths of images, windows with objects, and windows without."""

    images: list[str]
    objects: list[Window]
    backgrounds: list[Window]


def read_windows(text: str, layer: Any) -> Windows:
    """Return what a window file lists.

    For each image there are ``# NUMBER``, a path, channels, height, width, the number of windows, and for each window
    a class, an overlap with an object, and four corners.

    Raises
    ------
    ModelError
        If the text is something else, or lacks windows of either kind.
    """
    given = layer.window_data_param
    found, words = Windows([], [], []), iter(text.split())
    try:
        for mark in words:
            number = int(next(words))
            if mark != "#" or number != len(found.images):
                raise ValueError(f"{mark} {number} where # {len(found.images)} is expected")
            found.images.append(given.root_folder + next(words))
            *_, count = [int(next(words)) for _ in range(4)]
            for _ in range(count):
                label, overlap = int(next(words)), np.float32(next(words))
                left, top, right, bottom = [int(next(words)) for _ in range(4)]
                if overlap >= np.float32(given.fg_threshold):
                    if label < 1:
                        raise ValueError(f"class {label} of an object")
                    found.objects.append(Window(number, label, (left, top, right, bottom)))
                elif overlap < np.float32(given.bg_threshold):
                    found.backgrounds.append(Window(number, 0, (left, top, right, bottom)))
    except (ValueError, StopIteration) as error:
        got = f"{given.source} of layer {layer.name!r}, which is no list of windows"
        raise ModelError(f"[data] got {got}: {str(error) or 'it ends too early'}") from None
    if not found.objects or not found.backgrounds:
        counts = f"{len(found.objects)} objects and {len(found.backgrounds)} backgrounds"
        raise ModelError(f"[data] got {counts} in {given.source} of layer {layer.name!r}, expected some of both")
    return found


class Cutter:
    """Cuts windows out of images and gives them the size `crop_size`.

    Parameters
    ----------
    layer : LayerParameter

    Notes
    -----
    As Caffe does: pixels are interpolated by OpenCV's rule for bytes; with `context_pad`, or `crop_mode` ``square``,
    what is outside of the image is 0. `scale` of ``transform_param`` has no effect in Caffe, and none here.
    """

    def __init__(self, layer: Any) -> None:
        given, transform = layer.window_data_param, layer.transform_param
        self._size, self._pad, self._square = transform.crop_size, given.context_pad, given.crop_mode == "square"
        self._name, self._scale = layer.name, np.float32(given.scale)
        if self._size < 1 or 2 * self._pad >= self._size:
            got = f"crop_size {self._size} and context_pad {self._pad}"
            raise ModelError(f"[data] got {got} in layer {layer.name!r}, expected a size above twice the padding")
        self._mean = mean_of(transform)
        if transform.mean_file:
            begin = [(size - self._size) // SHIFTED for size in self._mean.shape[1:]]
            if min(begin) < 0:
                raise ModelError(f"[data] got a mean of {self._mean.shape[1:]} pixels, expected at least {self._size}")
            self._mean = self._mean[:, begin[0] : begin[0] + self._size, begin[1] : begin[1] + self._size]
        elif len(transform.mean_value) not in (0, 1, COLOURS):
            got = f"{len(transform.mean_value)} times mean_value"
            raise ModelError(f"[data] got {got} in layer {layer.name!r}, expected 1 or {COLOURS}")

    def __call__(self, image: np.ndarray, window: Window, mirrored: bool) -> np.ndarray:
        """Return a window of an image (channels, height, width) as float32 (channels, size, size).

        Raises
        ------
        ModelError
            If the window is not in the image.
        """
        size, (height, width) = self._size, image.shape[1:]
        corners, sizes, place = window.corners, (size, size), (0, 0)
        if self._pad or self._square:
            corners, sizes, place = self._with_surroundings(corners, (height, width), mirrored)
        left, top, right, bottom = corners
        if not (0 <= left <= right < width and 0 <= top <= bottom < height) or min(sizes) < 1:
            got = f"a window with corners {window.corners} in an image of {width} x {height} pixels"
            raise ModelError(f"[data] got {got} in layer {self._name!r}, expected one inside of it")
        pixels = resized(image[:, top : bottom + 1, left : right + 1], sizes)
        inside = (slice(None), *(slice(begin, begin + count) for begin, count in zip(place, sizes)))
        found = np.zeros((len(image), size, size), np.float32)
        found[inside] = pixels[:, :, ::-1] if mirrored else pixels
        if self._mean is not None:
            found[inside] -= np.broadcast_to(self._mean, found.shape)[inside]
        found[inside] *= self._scale
        return found

    def _with_surroundings(
        self, corners: tuple[int, int, int, int], image: tuple[int, int], mirrored: bool
    ) -> tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int]]:
        """Return a window with padding around it: its corners in the image, its size in the result, and its place."""
        left, top, right, bottom = corners
        share = np.float32(self._size) / np.float32(self._size - 2 * self._pad)
        halves = [np.float32((bottom - top + 1) / 2), np.float32((right - left + 1) / 2)]
        middle = [np.float32(top) + halves[0], np.float32(left) + halves[1]]
        if self._square:
            halves = [max(halves)] * 2
        low = [_rounded(at - half * share) for at, half in zip(middle, halves)]
        high = [_rounded(at + half * share) for at, half in zip(middle, halves)]
        factors = [np.float32(self._size) / np.float32(end - begin + 1) for begin, end in zip(low, high)]
        before = [max(0, -begin) for begin in low]
        behind = [max(0, end - extent + 1) for end, extent in zip(high, image)]
        low = [begin + gone for begin, gone in zip(low, before)]
        high = [end - gone for end, gone in zip(high, behind)]
        sizes = [_rounded(np.float32(end - begin + 1) * factor) for begin, end, factor in zip(low, high, factors)]
        gone_across = behind[1] if mirrored else before[1]
        place = [_rounded(np.float32(before[0]) * factors[0]), _rounded(np.float32(gone_across) * factors[1])]
        sizes = [min(count, self._size - begin) for count, begin in zip(sizes, place)]
        return (low[1], low[0], high[1], high[0]), (sizes[0], sizes[1]), (place[0], place[1])


def _rounded(value: Any) -> int:
    """Return the nearest whole number, of halves the one away from 0, as C's `round`."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), float(value)))


def numbers_of(layer: Any) -> Sequence[int]:
    """Return how many backgrounds and how many objects a batch has."""
    given = layer.window_data_param
    objects = int(np.float32(given.batch_size) * np.float32(given.fg_fraction))
    return given.batch_size - objects, objects
