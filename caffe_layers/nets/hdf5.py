"""Caffe's files in HDF5: parameters of nets and states of solvers. They need h5py.

What a file says of itself is checked before memory is taken for it: its arrays are in the file, and not larger than
compression explains.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clgraft.core.model import ModelError

MAGIC = b"\x89HDF\r\n\x1a\n"
DATA, LABEL, HISTORY = "data", "label", "history"
AXES_OF_ROWS = 4  # of what HDF5Output writes
LOSS_SCALE, MOST_NUMBERS = "clgraft_loss_scale", 16  # an attribute, which Caffe does not look at
MOST_PER_BYTE, ROOM = 64, 2**20  # bytes of arrays: of each byte of the file, and besides
MOST_GROUPS, DEEPEST = 100_000, 32
FAULTS = (OSError, LookupError, ValueError, AttributeError, TypeError, RuntimeError, OverflowError, MemoryError)


def _library(path: Any) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ModelError(f"[caffe] got {path} in HDF5, which needs h5py (pip install h5py): {error}") from None
    return h5py


def write_weights(path: str | os.PathLike[str], layers: Sequence[tuple[str, Sequence[np.ndarray]]]) -> None:
    """Write the blobs of layers, each under ``data/NAME/NUMBER``."""
    library = _library(path)
    with library.File(path, "w") as file:
        data = file.create_group(DATA)
        for name, blobs in layers:
            group = data.require_group(name)
            for number, blob in enumerate(blobs):
                group.create_dataset(str(number), data=blob)


def read_weights(path: str) -> list[tuple[str, tuple[np.ndarray, ...]]]:
    """Return the blobs of layers."""
    library = _library(path)
    try:
        with library.File(path, "r") as file:
            reader = _Reader(library, path)
            return list(reader.layers(reader.inside(file, DATA)))
    except FAULTS as error:
        raise ModelError(f"[caffe] got {path}, which is no net's parameters in HDF5: {error}") from None


def write_rows(path: str, data: np.ndarray, label: np.ndarray) -> None:
    """Write the two arrays of an HDF5Output layer, as float32 with four axes, as Caffe does."""
    library = _library(path)
    if data.shape[:1] != label.shape[:1] or max(data.ndim, label.ndim) > AXES_OF_ROWS:
        got = f"blobs of shapes {data.shape} and {label.shape} for {path}"
        raise ModelError(f"[caffe] got {got}, expected as many rows in both, and at most {AXES_OF_ROWS} axes")
    try:
        with library.File(path, "w") as file:
            for name, array in ((DATA, data), (LABEL, label)):
                shape = (*array.shape, *(1,) * (AXES_OF_ROWS - array.ndim))
                file.create_dataset(name, data=np.asarray(array, np.float32).reshape(shape))
    except OSError as error:
        raise ModelError(f"[caffe] got {path} of an HDF5Output layer, which cannot be written: {error}") from None


def write_state(
    path: str | os.PathLike[str],
    iteration: int,
    learned_net: str,
    history: Sequence[np.ndarray],
    step: int,
    loss_scale: np.ndarray | None = None,
) -> None:
    """Write the state of a solver."""
    library = _library(path)
    with library.File(path, "w") as file:
        file.create_dataset("iter", data=np.array([iteration], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(learned_net.encode() + b"\0"))
        file.create_dataset("current_step", data=np.array([step], np.int32))
        group = file.create_group(HISTORY)
        for number, array in enumerate(history):
            group.create_dataset(str(number), data=array)
        if loss_scale is not None:
            file.attrs[LOSS_SCALE] = loss_scale


def read_state(path: str) -> tuple[int, str, list[np.ndarray], int, np.ndarray | None]:
    """Return iteration, the file of the parameters, histories, the step of the learning rate, and the loss scale."""
    library = _library(path)
    try:
        with library.File(path, "r") as file:
            reader = _Reader(library, path)
            learned = reader.array(file, "learned_net", "SO").item() if "learned_net" in file else b""
            text = learned.decode() if isinstance(learned, bytes) else str(learned)
            steps = [int(reader.array(file, name, "iu").reshape(-1)[0]) for name in ("iter", "current_step")]
            histories = reader.inside(file, HISTORY)
            arrays, scale = list(reader.numbered(histories, len(histories))), reader.numbers(file, LOSS_SCALE)
            return steps[0], text.rstrip("\0"), arrays, steps[1], scale
    except FAULTS as error:
        raise ModelError(f"[solver] got {path}, which is no state of a solver in HDF5: {error}") from None


class _Reader:
    """Takes arrays out of a file, as many as its size explains."""

    def __init__(self, library: Any, path: str) -> None:
        self._library = library
        self._room = MOST_PER_BYTE * os.path.getsize(path) + ROOM
        self._groups = MOST_GROUPS

    def layers(self, group: Any, name: str = "") -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Yield the layers in a group with their arrays; a name with slashes is a group in groups."""
        self._groups -= 1
        if self._groups < 0 or name.count("/") > DEEPEST:
            raise ValueError("more groups than a net has layers")
        inner = {each: self.inside(group, each) for each in map(str, group)}
        groups = {each: value for each, value in inner.items() if isinstance(value, self._library.Group)}
        count = len(inner) - len(groups)
        if name and (count or not groups):
            yield name, self.numbered(group, count)
        for each, value in groups.items():
            yield from self.layers(value, f"{name}/{each}" if name else each)

    def inside(self, group: Any, name: str) -> Any:
        """Return what a group has under a name; links may lead out of the file."""
        if not isinstance(group.get(name, getlink=True), self._library.HardLink):
            raise ValueError(f"{name!r} is a link")
        return group[name]

    def array(self, group: Any, name: str, kinds: str = "f") -> np.ndarray:
        """Return the elements of an array of some kinds of NumPy's types."""
        found = self.inside(group, name)
        if not isinstance(found, self._library.Dataset) or found.is_virtual or found.external:
            raise ValueError(f"{name!r} is no array of this file")
        if found.dtype.kind not in kinds:
            raise ValueError(f"{name!r} has elements of type {found.dtype}")
        self._room -= math.prod(found.shape) * found.dtype.itemsize
        if self._room < 0:
            raise ValueError(f"{name!r} of shape {found.shape} is more than the file can hold")
        return np.asarray(found[()])

    def numbers(self, group: Any, name: str) -> np.ndarray | None:
        """Return the few real numbers of an attribute, None if there is none."""
        if name not in group.attrs:
            return None
        kept = group.attrs.get_id(name)
        if kept.dtype.kind != "f" or math.prod(kept.shape) > MOST_NUMBERS:
            raise ValueError(f"attribute {name!r} has {kept.shape} elements of type {kept.dtype}")
        return np.asarray(group.attrs[name], np.float64)

    def numbered(self, group: Any, count: int) -> tuple[np.ndarray, ...]:
        """Return the arrays that a group has under 0, 1, ..."""
        return tuple(self.array(group, str(number)) for number in range(count))
