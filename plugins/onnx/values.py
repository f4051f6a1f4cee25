"""Values of a model while it is lowered, and the types that carry them on a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

REAL = ("float16", "bfloat16", "float32", "float64")  # from the narrowest to the widest
# types whose numbers float32 holds exactly; the other whole numbers are float64 on the device
SMALL = ("bool", "int8", "uint8", "int16", "uint16")
WHOLE = ("int32", "int64", "uint32", "uint64")
DTYPES = (*REAL, *SMALL, *WHOLE)

MOST_AXES = 32  # of a tensor; NumPy 1's limit
MOST_ELEMENTS = 2**59  # without its empty axes: NumPy counts bytes in 63 bits


def fault_of(shape: Sequence[int]) -> str:
    """Return what is expected of a shape that no array can have; empty if an array can."""
    if len(shape) > MOST_AXES:
        return f"at most {MOST_AXES} axes"
    if any(size < 0 for size in shape):
        return "sizes of at least 0"
    return "fewer elements" if math.prod(size for size in shape if size) > MOST_ELEMENTS else ""


@dataclass(eq=False)
class OnnxValue:
    """A tensor of a model: known on the host, or a value of the core's graph, or both.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        ONNX's type, as NumPy calls it.
    array : numpy.ndarray or None
        The elements, where they are known while the model is lowered.
    name : str
        The graph's value, or empty. It may have another shape with as many elements.
    carrier : str
        The type of the graph's value. Whole numbers and truth values travel as real numbers.
    key : str
        What the value is called when its elements are asked for.
    """

    shape: tuple[int, ...]
    dtype: str
    array: np.ndarray | None = None
    name: str = ""
    carrier: str = ""
    key: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_real(self) -> bool:
        """Whether the elements are real numbers."""
        return self.dtype in REAL


def known(array: np.ndarray) -> OnnxValue:
    """Return a value whose elements are known."""
    return OnnxValue(tuple(int(size) for size in array.shape), array.dtype.name, array)


def widest(dtypes: Iterable[str]) -> str:
    """Return the type that holds what values of some real types make together."""
    found = set(dtypes)
    return "float32" if found == {"float16", "bfloat16"} else max(found, key=REAL.index)


def carrier_of(dtype: str, has_fp64: bool) -> str:
    """Return the type that carries a type's elements on a device.

    Whole numbers of 32 and 64 bits are float64, which is exact up to 2^53; where a device has none they are float32,
    exact up to 2^24.
    """
    if dtype in REAL:
        return dtype
    return "float64" if dtype in WHOLE and has_fp64 else "float32"
