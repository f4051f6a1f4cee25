"""The only module that imports Caffe."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import caffe
import numpy as np

Layer, Net = caffe.Layer, caffe.Net
TRAIN, TEST = 0, 1  # values of a layer's `phase`


def native_fill(shape: tuple[int, ...], filler: Any) -> np.ndarray:
    """Return an array filled as Caffe's own layer would fill its blob.

    Caffe's random numbers cannot be seeded or drawn from Python, so its own filler does the work, inside a net of
    one DummyData layer. A net and its swapped twin therefore start from the same weights under the same `random_seed`.

    Parameters
    ----------
    shape : tuple of int
        Shape of the blob.
    filler : FillerParameter
        Its text is passed to Caffe.

    Returns
    -------
    numpy.ndarray
        float32.
    """
    dims = " ".join(f"dim: {size}" for size in shape)
    text = (
        'layer { name: "filled" type: "DummyData" top: "filled" '
        f"dummy_data_param {{ shape {{ {dims} }} data_filler {{ {filler} }} }} }}"
    )
    handle, path = tempfile.mkstemp(suffix=".prototxt")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        net = caffe.Net(path, TRAIN)
        net.forward()
        return net.blobs["filled"].data.copy()
    finally:
        os.unlink(path)
