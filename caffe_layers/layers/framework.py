"""The only module that imports Caffe: it makes the layers Python layers of Caffe's."""

from __future__ import annotations

import os
import tempfile
import types
from typing import Any

import caffe
import numpy as np

from clgraft.caffe_layers.layers.layer import TRAIN
from clgraft.caffe_layers.regions import visible


class InCaffe:
    """What a layer does through Caffe's own Python module."""

    def drawn(self, shape: tuple, filler: Any) -> np.ndarray:
        """Return an array filled as Caffe's own layer would fill its blob."""
        return native_fill(shape, filler)

    def show_hidden(self) -> None:
        """Let nets show which of their blobs are not on the host."""
        visible.install(caffe.Net)


def bind(layer_class: type) -> type:
    """Return a layer's class as one that Caffe can make: derived from Caffe's own class for Python layers."""

    def fill(names: dict) -> None:
        names.update(__module__=layer_class.__module__, __doc__=layer_class.__doc__, __qualname__=layer_class.__name__)

    return types.new_class(layer_class.__name__, (InCaffe, layer_class, caffe.Layer), exec_body=fill)


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
