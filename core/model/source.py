"""The bytes of a model's file."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Union

from clgraft.core.model.errors import ModelError

POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # all pages at once, from Python 3.10 on
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

    Regular files are mapped: new memory costs more than reading, above all in virtual machines. Who keeps bytes copies
    them, so that the file may change afterwards.
    """
    if isinstance(source, bytes):
        return unnamed, memoryview(source)
    name = os.fspath(source)
    try:
        with open(source, "rb", buffering=0) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or not state.st_size:
                return name, memoryview(file.readall())
            return name, memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | POPULATE, prot=mmap.PROT_READ))
    except OSError as error:
        raise ModelError(f"[{kind}] got {name}, which cannot be read: {error.strerror}") from None
