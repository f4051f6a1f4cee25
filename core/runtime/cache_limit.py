"""The size limit of the program cache: what was used least recently goes first.

Every process that adds a file makes room for it. Several processes may do so at once: a file that another one has
removed counts as removed, and a reader that has opened a file keeps its content.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from clgraft.core import settings
from clgraft.core.files import UNFINISHED

LEFTOVER_SECONDS = 3600.0  # age from which a file that was never finished is removed


@dataclass(frozen=True)
class Entry:
    """A file of the cache, its size in bytes and the time of its last use."""

    path: Path
    nbytes: int
    used: float


def limit() -> int | None:
    """Return the limit in bytes; None if there is none.

    ``CLGRAFT_CACHE_LIMIT`` holds a number of bytes, or of KiB, MiB or GiB with the letter K, M or G (``512M``), or
    ``off``. Without it the limit is 512 MiB.

    Raises
    ------
    ArgumentError
        If it holds something else.
    """
    most: int | None = settings.CACHE_LIMIT.value()
    return most


def entries(folder: Path) -> list[Entry]:
    """Return the regular files in the cache's folder, the least recently used first."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as listed:
        for item in listed:
            with contextlib.suppress(OSError):
                state = item.stat(follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    found.append(Entry(Path(item.path), state.st_size, state.st_mtime))
    return sorted(found, key=lambda entry: (entry.used, entry.path.name))


def make_room(folder: Path, path: Path, nbytes: int) -> None:
    """Remove files until a new one of `nbytes` bytes at `path` fits the limit.

    Raises
    ------
    OSError
        If the file alone is larger than the limit.
    """
    most = limit()
    if most is None:
        return
    if nbytes > most:
        raise OSError(f"[cache] got a program of {nbytes} bytes, expected at most {most}")
    listed = [entry for entry in entries(folder) if entry.path != path]
    total = nbytes + sum(entry.nbytes for entry in listed)
    young = time.time() - LEFTOVER_SECONDS
    for entry in listed:
        unfinished = entry.path.name.startswith(UNFINISHED)
        if (total > most and not unfinished) or (unfinished and entry.used < young):
            with contextlib.suppress(OSError):
                entry.path.unlink()
            total -= entry.nbytes


def clear(folder: Path) -> tuple[int, int]:
    """Remove every program and return how many files and bytes that were."""
    count = nbytes = 0
    for entry in entries(folder):
        with contextlib.suppress(OSError):
            entry.path.unlink()
            count, nbytes = count + 1, nbytes + entry.nbytes
    return count, nbytes
