"""The bytes of a model's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

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
