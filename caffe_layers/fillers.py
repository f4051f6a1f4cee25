"""Initial values of learnable blobs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.caffe_layers import framework


def fill(shape: tuple, filler: Any) -> np.ndarray:
    """Give the initial values of a blob.

    Parameters
    ----------
    shape : tuple of int
        Shape of the blob.
    filler : FillerParameter
        What the native layer's parameters ask for: ``constant`` (the default), ``uniform``, ``gaussian`` (``sparse``
        too), ``positive_unitball``, ``xavier``, ``msra`` (each with ``variance_norm``), ``bilinear``, or what else
        this Caffe has.

    Returns
    -------
    numpy.ndarray
        float32 values, the same as a native layer would get at this point of Caffe's random numbers.
    """
    if filler.type == "constant":
        return np.full(shape, filler.value, np.float32)
    return framework.native_fill(shape, filler)
