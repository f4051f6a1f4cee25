"""Blobs of a layer in C++: names of memory while the layer describes itself, arrays while it works on the host."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from clgraft.caffe_layers.regions.memory import Memory

BOTTOM, TOP, PARAMETER = range(3)  # the numbers and
MOST_AXES = 32  # of a blob of Caffe's
LETTERS = "btp"  # letters of what a blob is to its layer; a gradient has the capital one

# What C++ hands over: a function that returns a blob's memory (layer, side, index, whether the gradient is meant); one
# that gives a blob a shape, unless the number of sizes is negative, then writes its sizes and returns their number
# (layer, side, index, sizes, their number); and one that fills memory as Caffe's own filler does (filler as text,
# sizes, their number, memory, bytes of an element).
# They keep the interpreter's lock, because they may be called from within it.
_Pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
_Shape = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int
)
_Fill = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p, ctypes.c_int
)


class Host:
    """A layer in C++.

    Attributes
    ----------
    live : bool
        Whether blobs are arrays now; else they are names of memory.

    Parameters
    ----------
    layer, pointer, shape, fill : int
        Addresses of the layer and of the three functions that are described above.
    real : numpy type
        Of its blobs.
    """

    def __init__(self, layer: int, pointer: int, shape: int, fill: int, real: Any) -> None:
        self.live, self.real = False, real
        self._layer, self._pointer, self._shape, self._fill = layer, _Pointer(pointer), _Shape(shape), _Fill(fill)
        self._views: dict = {}

    def view(self, side: int, index: int, gradient: int, shape: tuple) -> np.ndarray:
        """Return a blob's memory as an array."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, self.real)
        address = self._pointer(self._layer, side, index, gradient)
        key = (address, shape)
        found = self._views.get(key)
        if found is None:
            memory = (ctypes.c_char * (count * np.dtype(self.real).itemsize)).from_address(address)
            found = np.frombuffer(memory, self.real).reshape(shape)
            if len(self._views) > 64:  # most are of shapes that are gone
                self._views.clear()
            self._views[key] = found
        return found

    def shape(self, side: int, index: int, wanted: tuple | None = None) -> tuple:
        """Return the shape of a blob of Caffe's, which may be given another one first."""
        sizes = (ctypes.c_int * MOST_AXES)(*(wanted or ()))
        return tuple(sizes[: self._shape(self._layer, side, index, sizes, -1 if wanted is None else len(wanted))])

    def drawn(self, shape: tuple, filler: Any) -> np.ndarray:
        """Return an array that Caffe's filler has filled."""
        result = np.empty(shape, np.float32)
        sizes = (ctypes.c_int * len(shape))(*shape)
        done = self._fill(str(filler).encode(), sizes, len(shape), result.ctypes.data, result.itemsize)
        if not done:
            raise ValueError(f"[filler] got {filler}, expected a filler that Caffe reads")
        return result


class Blob:
    """A blob of a layer in C++."""

    def __init__(self, host: Host, side: int, index: int, shape: tuple) -> None:
        self._host, self._side, self._index = host, side, index
        self.reshape(*shape)

    def reshape(self, *shape: int) -> None:
        """Take a new shape; where blobs are arrays, Caffe's blob takes it as well."""
        self._shape = self._host.shape(self._side, self._index, shape) if self._host.live else shape
        self._data, self._diff = Memory(self._shape), Memory(self._shape)

    @property
    def shape(self) -> tuple:
        """Its shape; where blobs are arrays, that of Caffe's blob."""
        if self._host.live and self._side != PARAMETER:  # those never change
            self._shape = self._host.shape(self._side, self._index)
        return self._shape

    @property
    def data(self) -> Any:
        """Its values."""
        return self._host.view(self._side, self._index, 0, self._shape) if self._host.live else self._data

    @property
    def diff(self) -> Any:
        """Their gradient."""
        return self._host.view(self._side, self._index, 1, self._shape) if self._host.live else self._diff

    def names(self) -> dict:
        """Return what its memory is called, by address."""
        letter = LETTERS[self._side]
        return {
            self._data.address: f"{letter}{self._index}",
            self._diff.address: f"{letter.upper()}{self._index}",
        }


class Blobs(list):
    """The learnable blobs of a layer that is being set up."""

    def __init__(self, host: Host, shapes: list) -> None:
        super().__init__(Blob(host, PARAMETER, i, shape) for i, shape in enumerate(shapes))
        self._host = host

    def add_blob(self, *shape: int) -> None:
        """Add a blob."""
        self.append(Blob(self._host, PARAMETER, len(self), shape))
