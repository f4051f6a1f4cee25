"""The bytes of a model's file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Union

import numpy as np

from clgraft.core.model.errors import ModelError

Source = Union[str, "os.PathLike[str]", bytes]


def contents(kind: str, source: Source, unnamed: str) -> tuple[str, bytes]:
    """Return what a source is called in errors, and its bytes.

    Parameters
    ----------
    kind : str
        What the model is, at the beginning of errors, such as ``caffe``.
    source : path or bytes
    unnamed : str
        What bytes are called.

    Raises
    ------
    ModelError
        If the file cannot be read.
    """
    if isinstance(source, bytes):
        return unnamed, source
    name = os.fspath(source)
    try:
        return name, Path(source).read_bytes()
    except OSError as error:
        raise ModelError(f"[{kind}] got {name}, which cannot be read: {error.strerror}") from None


def view(kind: str, source: Source, unnamed: str) -> tuple[str, memoryview]:
    """Return what a source is called in errors, and a view of its bytes (see `contents`).

    They are read into an array of NumPy's, which asks for large pages: these are filled in less than half of the time.
    """
    if isinstance(source, bytes):
        return unnamed, memoryview(source)
    name = os.fspath(source)
    try:
        with open(source, "rb", buffering=0) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                return name, memoryview(file.readall())
            place, count = np.empty(state.st_size, np.uint8).data, 0
            while count < len(place) and (got := file.readinto(place[count:])):
                count += got
            return name, place[:count].toreadonly()
    except OSError as error:
        raise ModelError(f"[{kind}] got {name}, which cannot be read: {error.strerror}") from None
