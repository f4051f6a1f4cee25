"""Reads and writes the parameters of nets, Caffe's ``.caffemodel``; `hdf5` has its form in HDF5.

The binary form is a message of protobuf. Its arrays are taken out as they lie there: a reader that makes an object of
every number needs ten times the file's memory, and protobuf's own is bound to a release.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.caffe_layers.nets import hdf5
from clgraft.caffe_layers.prototxt import PrototxtError
from clgraft.core.files import write_whole
from clgraft.core.model import ModelError, Source, view
from clgraft.core.problem import round_up
from clgraft.core.runtime.arrays import ALIGNMENT, aligned

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # kinds of fields in protobuf's binary form
SIZES = {DOUBLE: 8, FLOAT: 4}
LONGEST_VARINT = 10
MOST_AXES = 32
LARGEST_BLOCK = 2**25  # bytes that arrays share
MOST_LAYERS, MOST_BLOBS = 100_000, 200_000
# numbers of fields
NET_NAME, NET_LAYERS, NET_LAYER = 1, 2, 100  # layers: before 2014
LAYER_NAME, LAYER_TYPE, LAYER_BLOBS = 1, 2, 7
V1_LAYER, V1_NAME, V1_BLOBS = 1, 4, 6  # layer: a layer of V0 in one of V1
V0_NAME, V0_BLOBS = 1, 50
BLOB_DATA, BLOB_SHAPE, BLOB_DOUBLES, SHAPE_SIZES = 5, 7, 8, 1
LEGACY = (1, 2, 3, 4)  # num, channels, height, width
FIRST = re.compile(rb"(?:name|layers?|input\w*|state|force_backward|debug_info)\s*[:{<]")


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of a layer.

    Attributes
    ----------
    name : str
    type : str
        Empty in files before 2014.
    blobs : tuple of numpy.ndarray
        float32, or float64 where the file has such numbers.
    """

    name: str
    type: str
    blobs: tuple[np.ndarray, ...]


def read_caffemodel(source: Source) -> list[LayerWeights]:
    """Read the parameters of a net.

    Parameters
    ----------
    source : path or bytes
        In binary form or in text form, of V0, V1 or today; a path also in HDF5.

    Returns
    -------
    list of LayerWeights
        The layers in the file's order, those without parameters too.

    Raises
    ------
    ModelError
        If it cannot be read or is damaged, or is in HDF5 and h5py is not installed.
    """
    name, data = view("caffe", source, "caffemodel")
    if data[: len(hdf5.MAGIC)] == hdf5.MAGIC:
        if isinstance(source, bytes):
            raise ModelError(f"[caffe] got {name} in HDF5, expected a path of it")
        return [LayerWeights(layer, "", blobs) for layer, blobs in hdf5.read_weights(name)]
    return _from_text(name, bytes(data)) if _is_text(bytes(data[:65536])) else MessageReader(name).read(data)


def write_caffemodel(path: str | os.PathLike[str], layers: Sequence[LayerWeights], name: str = "") -> None:
    """Write the parameters of a net in the binary form, for Caffe and every other reader of ``.caffemodel``.

    A path that ends with ``.h5`` gets HDF5.

    Parameters
    ----------
    path : path
    layers : sequence of LayerWeights
        With blobs of float32 or float64.
    name : str, optional
        Of the net.

    Raises
    ------
    ModelError
        If a blob has another type.
    """
    if os.fspath(path).endswith(".h5"):
        hdf5.write_weights(path, [(layer.name, layer.blobs) for layer in layers])
        return
    parts = [bytes_field(NET_NAME, name.encode())] if name else []
    for layer in layers:
        inside = [bytes_field(LAYER_NAME, layer.name.encode())]
        if layer.type:
            inside.append(bytes_field(LAYER_TYPE, layer.type.encode()))
        inside += [bytes_field(LAYER_BLOBS, blob_bytes(layer.name, np.asarray(blob))) for blob in layer.blobs]
        parts.append(bytes_field(NET_LAYER, b"".join(inside)))
    write_whole(Path(path), b"".join(parts), 0o644)


def blob_bytes(layer: str, array: np.ndarray) -> bytes:
    """Return an array as a blob's message; `layer` is what it is called in errors."""
    numbers = {"float32": BLOB_DATA, "float64": BLOB_DOUBLES}
    if array.dtype.name not in numbers:
        raise ModelError(f"[caffe] got a blob of {array.dtype} in layer {layer!r}, expected float32 or float64")
    sizes = b"".join(map(_varint, array.shape))
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    fields = {BLOB_SHAPE: bytes_field(SHAPE_SIZES, sizes) if sizes else b""}
    if data:
        fields[numbers[array.dtype.name]] = data
    return b"".join(bytes_field(number, fields[number]) for number in sorted(fields))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return _varint(number << 3 | VARINT) + _varint(value)


def bytes_field(number: int, data: bytes) -> bytes:
    """Return a field that holds bytes: text, or a message."""
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


@dataclass
class _Blob:
    """A blob while it is read: its numbers as bytes, each kind for itself."""

    legacy: dict[int, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    floats: list[memoryview] = field(default_factory=list)
    doubles: list[memoryview] = field(default_factory=list)


class MessageReader:
    """Reads messages of Caffe's in binary form.

    Parameters
    ----------
    name : str
        Of the file, for errors.
    form : str
        What it should be.
    """

    def __init__(self, name: str, form: str = "a caffemodel") -> None:
        self._name, self._form = name, f"{form} in binary form"
        self._blobs = 0
        self._room, self._block = 0, np.empty(0, np.uint8)

    def read(self, data: memoryview) -> list[LayerWeights]:
        """Return all layers."""
        self._room = len(data)
        layers: list[LayerWeights] = []
        for number, value in self.fields(data, "the net"):
            if number not in (NET_LAYER, NET_LAYERS) or not isinstance(value, memoryview):
                continue
            if len(layers) >= MOST_LAYERS:
                raise self._error(f"more than {MOST_LAYERS} layers", "fewer")
            layers.append(self._layer(value) if number == NET_LAYER else self._older_layer(value))
        if not layers:
            raise self._error("no layers", "a net's parameters")
        return layers

    def _error(self, got: str, expected: str) -> ModelError:
        return ModelError(f"[caffe] got {self._name} with {got}, expected {expected}")

    def _number(self, data: memoryview, place: int, where: str) -> tuple[int, int]:
        """Return a number of variable length, and the place after it."""
        found = shift = 0
        for byte in data[place : place + LONGEST_VARINT]:
            place += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found & 2**64 - 1, place
            shift += 7
        raise self._error(f"a number in {where} that does not end", "a whole file")

    def fields(self, data: memoryview, where: str) -> Iterator[tuple[int, Any]]:
        """Yield the fields of a message: numbers, or views of the bytes of all others."""
        place, end = 0, len(data)
        while place < end:
            tag, place = self._number(data, place, where)
            number, kind = tag >> 3, tag & 7
            if not number:
                raise self._error(f"a field 0 in {where}", self._form)
            if kind == VARINT:
                value, place = self._number(data, place, where)
                yield number, value
                continue
            if kind == BYTES:
                count, place = self._number(data, place, where)
            elif kind in SIZES:
                count = SIZES[kind]
            else:
                raise self._error(f"a field of kind {kind} in {where}", self._form)
            if count > end - place:
                raise self._error(f"{end - place} bytes left for field {number} of {where}", f"{count}: it is cut off")
            yield number, data[place : place + count]
            place += count

    def text(self, value: Any) -> str:
        """Return the text of a field."""
        try:
            return bytes(value).decode() if isinstance(value, memoryview) else ""
        except UnicodeDecodeError:
            raise self._error(f"the name {bytes(value)[:40]!r}", "UTF-8") from None

    def _layer(self, data: memoryview) -> LayerWeights:
        name, kind, blobs = "", "", []
        for number, value in self.fields(data, "a layer"):
            if number == LAYER_NAME:
                name = self.text(value)
            elif number == LAYER_TYPE:
                kind = self.text(value)
            elif number == LAYER_BLOBS:
                blobs.append(self.blob(value, name))
        return LayerWeights(name, kind, tuple(blobs))

    def _older_layer(self, data: memoryview) -> LayerWeights:
        """Return a layer of V1, or of V0 in one."""
        name, blobs = "", []
        for number, value in self.fields(data, "a layer"):
            if number == V1_NAME:
                name = self.text(value)
            elif number == V1_BLOBS:
                blobs.append(self.blob(value, name))
            elif number == V1_LAYER and isinstance(value, memoryview):
                for inner, part in self.fields(value, "a layer"):
                    if inner == V0_NAME:
                        name = self.text(part)
                    elif inner == V0_BLOBS:
                        blobs.append(self.blob(part, name))
        return LayerWeights(name, "", tuple(blobs))

    def blob(self, data: Any, layer: str) -> np.ndarray:
        """Return the array of a blob in some layer."""
        where = f"a blob of layer {layer!r}"
        if not isinstance(data, memoryview):
            raise self._error(f"{where} that is a number", "a message")
        self._blobs += 1
        if self._blobs > MOST_BLOBS:
            raise self._error(f"more than {MOST_BLOBS} blobs", "fewer")
        blob = _Blob()
        for number, value in self.fields(data, where):
            if number in LEGACY and isinstance(value, int):
                blob.legacy[number] = _signed(value)
            elif number == BLOB_SHAPE and isinstance(value, memoryview):
                blob.sizes += self._sizes(value, where)
            elif number == BLOB_DATA and isinstance(value, memoryview):
                blob.floats.append(value)
            elif number == BLOB_DOUBLES and isinstance(value, memoryview):
                blob.doubles.append(value)
            if len(blob.sizes) > MOST_AXES:
                raise self._error(f"{where} of more than {MOST_AXES} axes", "fewer")
        return self._array(blob, where)

    def _sizes(self, data: memoryview, where: str) -> list[int]:
        """Return the sizes of a shape, which lie side by side or each in a field."""
        found: list[int] = []
        for number, value in self.fields(data, where):
            if number != SHAPE_SIZES:
                continue
            if isinstance(value, int):
                found.append(_signed(value))
                continue
            place = 0
            while place < len(value) and len(found) <= MOST_AXES:
                size, place = self._number(value, place, where)
                found.append(_signed(size))
        return found

    def _array(self, blob: _Blob, where: str) -> np.ndarray:
        """Return the elements, as Caffe takes them: the four old sizes before a shape, double before single ones."""
        shape = tuple(blob.legacy.get(axis, 0) for axis in LEGACY) if blob.legacy else tuple(blob.sizes)
        parts, dtype = (blob.doubles, np.dtype("<f8")) if any(blob.doubles) else (blob.floats, np.dtype("<f4"))
        count = sum(map(len, parts))
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != count:
            raise self._error(f"{count} bytes of numbers for {where} of shape {shape}", "as many as its shape says")
        if math.prod(size for size in shape if size) > 2**59:  # NumPy counts in 63 bits
            raise self._error(f"{where} of shape {shape}", "fewer elements")
        place = self._memory(count)
        place[:] = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
        return place.view(dtype).reshape(shape)

    def _memory(self, nbytes: int) -> np.ndarray:
        """Return memory for an array: a part of a large block, which is filled faster than many small ones."""
        if nbytes > len(self._block):
            self._block = aligned(max(nbytes, min(self._room, LARGEST_BLOCK)))
        found, self._block = self._block[:nbytes], self._block[round_up(nbytes, ALIGNMENT) :]
        return found


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _is_text(data: bytes) -> bool:
    """Return whether a file that begins like this is in text form, judged by its first line that is no comment."""
    lines = (line.strip() for line in data.split(b"\n"))
    first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    return FIRST.match(first) is not None


def _from_text(name: str, data: bytes) -> list[LayerWeights]:
    """Return the layers of a net in text form."""
    from clgraft.caffe_layers.prototxt import schema  # needs protobuf's classes, which the binary form does without

    try:
        net = schema.parse("NetParameter", data.decode())
    except (PrototxtError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise ModelError(f"[caffe] got {name}, which is no net in text form: {error}") from None
    found = [(layer.name, layer.type, layer.blobs) for layer in net.layer]
    for layer in net.layers:
        inner = layer.layer
        found.append((layer.name or inner.name, "", layer.blobs or inner.blobs))
    if not found:
        raise ModelError(f"[caffe] got {name} without layers, expected a net's parameters")
    reader = MessageReader(name)
    return [
        LayerWeights(layer, kind, tuple(reader.blob(memoryview(blob.SerializeToString()), layer) for blob in blobs))
        for layer, kind, blobs in found
    ]
