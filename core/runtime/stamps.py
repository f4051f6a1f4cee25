"""Says whether our own sources are those of a process before: by their names, sizes and times of change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from clgraft.core.runtime import sources

CORE = Path(__file__).resolve().parents[1]
UNREAD = "__pycache__"


def code() -> str | None:
    """Return a digest that changes with every module, row and kernel that plans depend on; None if they are no files.

    A file that is written again with the same bytes counts as changed.
    """
    return _digest(str(CORE), str(sources.KERNELS))


@cache
def _digest(*folders: str) -> str | None:
    digest = hashlib.sha256()
    try:
        for folder in folders:
            for line in _files(folder):
                digest.update(line.encode() + b"\0")
    except OSError:
        return None
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    """Yield a line for each file below a folder, in a fixed order."""
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != UNREAD:
                yield from _files(entry.path)
        else:
            state = entry.stat()
            yield f"{entry.path} {state.st_size} {state.st_mtime_ns}"
