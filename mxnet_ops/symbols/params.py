"""Reads and writes MXNet's ``.params``: lists of arrays, mostly with names.

A file is a header, the arrays and their names. Numbers are little-endian:

========================  ==============================================================================
u64 0x112, u64 0          of a list of arrays
u64 count, arrays         see below
u64 count, names          as many as arrays, or none; a u64 length and bytes for each
========================  ==============================================================================

An array begins with a u32 that says its form. In the forms of today (``F993FAC9``, and ``F993FACA`` with NumPy's
shapes, where no axes make a scalar) there follow an i32 storage type and the shape: i32 axes and an i64 for each. In
the form before those (``F993FAC8``) the shape follows at once; in the oldest the u32 is the number of axes itself, with
a u32 for each. Then come the device (two i32), an i32 type, and the elements.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clgraft.core.files import write_whole
from clgraft.core.model import ModelError, Source

LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # as MXNet shows it in NumPy
WORDS = ("<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?", "<i2", "<u2", "<u4", "<u8")
DTYPES: dict[int, np.dtype[Any]] = {**{code: np.dtype(word) for code, word in enumerate(WORDS)}, 12: BFLOAT16}
CODES = {dtype: code for code, dtype in DTYPES.items()}
STORAGE = {-1: "undefined", 0: "default", 1: "row_sparse", 2: "csr"}
CPU = (1, 0)  # the device that arrays come from, and go to
MOST_AXES = 32
SHORTEST_ARRAY = 4  # bytes
ARGUMENT, AUXILIARY = "arg:", "aux:"  # how names begin in files of Module and of export


def read_params(source: Source) -> dict[str, np.ndarray] | list[np.ndarray]:
    """Read a file of arrays.

    Parameters
    ----------
    source : path or bytes

    Returns
    -------
    dict of str to numpy.ndarray, or list of numpy.ndarray
        The arrays by their names, as the file has them; a list if the file has no names. bfloat16 is a structured type
        with the field ``bfloat16``.

    Raises
    ------
    ModelError
        If it is no such file, is damaged, or holds what NumPy cannot: sparse arrays, arrays without a shape.
    """
    if isinstance(source, bytes):
        return _Reader(io.BytesIO(source), len(source), "params").read()
    try:
        with open(source, "rb") as file:
            return _Reader(file, os.fstat(file.fileno()).st_size, os.fspath(source)).read()
    except OSError as error:
        raise ModelError(f"[mxnet] got {os.fspath(source)}, which cannot be read: {error.strerror}") from None


def read_named(source: Source) -> dict[str, np.ndarray]:
    """Read the parameters of a net: names without ``arg:`` and ``aux:``.

    Raises
    ------
    ModelError
        As `read_params`; if the arrays have no names, or two have one.
    """
    found = read_params(source)
    if isinstance(found, list):
        raise ModelError(f"[mxnet] got {_name(source)} with {len(found)} arrays without names, expected named ones")
    bare: dict[str, np.ndarray] = {}
    for name, array in found.items():
        own = name[len(ARGUMENT) :] if name.startswith((ARGUMENT, AUXILIARY)) else name
        if own in bare:
            raise ModelError(f"[mxnet] got {_name(source)} with two arrays {own!r}, expected one")
        bare[own] = array
    return bare


def write_params(path: str | os.PathLike[str], arrays: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write arrays as `mxnet.nd.save` does, for `mxnet.nd.load` and every other reader of ``.params``.

    Parameters
    ----------
    path : path
    arrays : mapping of str to array, or sequence of array
        With names or without. Scalars and arrays without elements need MXNet's `np_shape` where they are read.

    Raises
    ------
    ModelError
        If an array has a type that MXNet lacks.
    """
    named = isinstance(arrays, Mapping)
    names = [str(name).encode() for name in arrays] if named else []
    values = [np.asarray(array) for array in (arrays.values() if isinstance(arrays, Mapping) else arrays)]
    form = V3 if any(not array.ndim or not array.size for array in values) else V2
    parts = [struct.pack("<QQQ", LIST, 0, len(values))]
    for number, array in enumerate(values):
        dtype = array.dtype if array.dtype == BFLOAT16 else array.dtype.newbyteorder("<")
        if dtype not in CODES:
            whose = names[number].decode() if named else str(number)
            known = [str(each) for each in CODES]
            raise ModelError(f"[mxnet] got array {whose!r} of type {array.dtype}, expected one of {known}")
        parts.append(struct.pack("<Iii", form, 0, array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape))
        parts.append(struct.pack("<iii", *CPU, CODES[dtype]))
        parts.append(np.ascontiguousarray(array, dtype).tobytes())
    parts.append(struct.pack("<Q", len(names)))
    parts += [struct.pack("<Q", len(name)) + name for name in names]
    write_whole(Path(path), b"".join(parts), 0o644)


def _name(source: Source) -> str:
    return "params" if isinstance(source, bytes) else os.fspath(source)


class _Reader:
    """Reads one file. Nothing is allocated that the rest of the file cannot fill.

    Parameters
    ----------
    file : binary file
    size : int
        Of the file.
    name : str
        For errors.
    """

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._left, self._name = file, size, name

    def read(self) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Return all arrays."""
        kind, _, count = self._numbers("QQQ", "the header of a list of arrays")
        if kind != LIST:
            raise self._error(f"{kind:#x} at its beginning", f"{LIST:#x}, as in files of mxnet.nd.save")
        self._expect_count(count, SHORTEST_ARRAY, "arrays")
        arrays = [self._array(number) for number in range(count)]
        (named,) = self._numbers("Q", "the number of names")
        if named not in (0, count):
            raise self._error(f"{named} names", f"{count}, one for each array, or none")
        self._expect_count(named, 8, "names")
        names = [self._text() for _ in range(named)]
        if self._left:
            raise self._error(f"{self._left} bytes after its end", "none")
        if not named:
            return arrays
        found = dict(zip(names, arrays))
        if len(found) < count:
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise self._error(f"two arrays {twice!r}", "one of each name")
        return found

    def _error(self, got: str, expected: str) -> ModelError:
        return ModelError(f"[mxnet] got {self._name} with {got}, expected {expected}")

    def _expect_count(self, count: int, each: int, what: str) -> None:
        if count > self._left // each:
            raise self._error(f"{count} {what} in {self._left} bytes", "a whole file")

    def _take(self, count: int, what: str) -> bytes:
        if count > self._left:
            raise self._error(f"{self._left} bytes left for {what}", f"{count}: it is cut off or damaged")
        data = self._file.read(count)
        if len(data) < count:
            raise self._error(f"{len(data)} bytes left for {what}", f"{count}: it became shorter")
        self._left -= count
        return data

    def _numbers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}"), what))

    def _text(self) -> str:
        (length,) = self._numbers("Q", "the length of a name")
        data = self._take(length, "a name")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._error(f"the name {data[:40]!r}", "UTF-8") from None

    def _array(self, number: int) -> np.ndarray:
        what = f"array {number}"
        (form,) = self._numbers("I", what)
        if form in (V2, V3):
            (storage,) = self._numbers("i", what)
            if storage > 0:
                kind = STORAGE.get(storage, f"type {storage}")
                raise self._error(f"{what} of storage {kind}", "dense arrays: clgraft has no sparse ones")
            shape = self._shape(what)
        elif form == V1:
            shape = self._shape(what)
        else:
            if form > MOST_AXES:
                raise self._error(f"{what} of form {form:#x}", f"one of {V1:#x}, {V2:#x}, {V3:#x}, or axes")
            shape = self._numbers(f"{form}I", what)
        if (form != V3 and not shape) or any(size < 0 for size in shape):
            raise self._error(f"{what} of shape {shape}", "a shape: it is an array without elements")
        _, _, code = self._numbers("iii", what)
        if code not in DTYPES:
            raise self._error(f"{what} of type {code}", f"one of {sorted(DTYPES)}")
        return self._elements(shape, DTYPES[code], what)

    def _shape(self, what: str) -> tuple[int, ...]:
        (axes,) = self._numbers("i", what)
        if not 0 <= axes <= MOST_AXES:
            raise self._error(f"{what} of {axes} axes", f"0 to {MOST_AXES}")
        return self._numbers(f"{axes}q", what)

    def _elements(self, shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self._left:
            raise self._error(f"{self._left} bytes left for {what} of shape {shape}", f"{nbytes}: it is damaged")
        if nbytes == 0:
            if math.prod(size for size in shape if size) > 2**59:  # NumPy counts in 63 bits
                raise self._error(f"{what} of shape {shape}", "fewer elements")
            return np.empty(shape, dtype)
        array = np.empty(nbytes, np.uint8)
        view = array.data
        done = 0
        while done < nbytes:
            got = self._file.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                raise self._error(f"{done} bytes left for {what}", f"{nbytes}: it became shorter")
            done += got
        self._left -= nbytes
        return array.view(dtype).reshape(shape)
