"""Caffe's transformation of images: mean, scale, crop and mirror."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.caffe_layers.nets.weights import MessageReader
from clgraft.core.model import ModelError, contents
from clgraft.core.nn.shapes import middle


def mean_of(given: Any) -> Any:
    """Return the mean of a `transform_param`, (channels, height, width) or (values, 1, 1); None if it has none."""
    if given.mean_file:
        name, data = contents("data", given.mean_file, "mean_file")
        mean = MessageReader(name, "a mean file").blob(memoryview(data), "mean")
        return mean.reshape(mean.shape[-3:]).astype(np.float32)
    return np.array(given.mean_value, np.float32).reshape(-1, 1, 1) if len(given.mean_value) else None


class Transform:
    """What `transform_param` asks for.

    Parameters
    ----------
    layer : LayerParameter
    training : bool
        Whether crops and mirrors are random; else crops are central, and nothing is mirrored.
    rng : numpy.random.Generator

    Notes
    -----
    The random numbers are not Caffe's: the same seed crops other pixels.
    """

    def __init__(self, layer: Any, training: bool, rng: np.random.Generator) -> None:
        given = layer.transform_param
        self._scale, self._mirror, self._crop = given.scale, given.mirror and training, given.crop_size
        self._training, self._rng = training, rng
        if given.mean_file and len(given.mean_value):
            raise ModelError(f"[data] got mean_file and mean_value in layer {layer.name!r}, expected one of them")
        self._mean = mean_of(given)

    def shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that images of a shape get."""
        channels, height, width = image
        if self._crop > min(height, width):
            raise ModelError(f"[data] got images of {height} x {width}, expected at least crop_size {self._crop}")
        return (channels, self._crop, self._crop) if self._crop else image

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return an image (channels, height, width) as float32 after the transformation."""
        _, height, width = image.shape
        found = image.astype(np.float32)
        top = left = 0
        if self._crop:
            if self._training:
                top, left = (int(self._rng.integers(0, size - self._crop + 1)) for size in (height, width))
            else:
                top, left = middle((height, width), (self._crop, self._crop))
        if self._mean is not None:
            if self._mean.shape[0] not in (1, image.shape[0]):
                raise ModelError(f"[data] got a mean of {self._mean.shape[0]} channels, expected {image.shape[0]} or 1")
            if self._mean.shape[1:] not in ((1, 1), (height, width)):
                got = f"a mean of {self._mean.shape[1:]} pixels for images of {(height, width)}"
                raise ModelError(f"[data] got {got}, expected the same")
            found = found - self._mean
        if self._crop:
            found = found[:, top : top + self._crop, left : left + self._crop]
        if self._mirror and self._rng.integers(0, 2):
            found = found[:, :, ::-1]
        return found * np.float32(self._scale)
