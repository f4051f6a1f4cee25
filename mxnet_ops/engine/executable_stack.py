"""Loads MXNet's library from a copy where it asks for an executable stack without need.

Some builds of the wheel have the flag, and glibc 2.41 refuses to load them: it no longer makes the stacks of running
threads executable. The copy, in clgraft's cache, differs in the flag alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import struct
from pathlib import Path

from clgraft.core import settings
from clgraft.core.files import write_whole
from clgraft.core.log import log
from clgraft.core.runtime import folders

VARIABLE = settings.MXNET_LIBRARY_PATH  # where MXNet looks for its library first
LIBRARY = "libmxnet.so"
REFUSING = (2, 41)  # the first glibc that refuses
GNU_STACK, EXECUTABLE = 0x6474E551, 1  # a type of program header, and the bit of its flags


def repair() -> Path | None:
    """Have MXNet load a repaired copy where glibc would refuse its library; return the copy.

    Nothing happens if the user has chosen a library, or none asks for an executable stack.
    """
    if VARIABLE.given or glibc() < REFUSING:
        return None
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        return None
    try:
        found = repaired(Path(spec.origin).parent)
    except OSError as error:
        log.warning("[mxnet] no copy of %s could be made whose stack is not executable: %s", LIBRARY, error)
        return None
    if found is not None:
        os.environ[VARIABLE.name] = str(found)
        log.info("[mxnet] %s asks for an executable stack, which glibc refuses: %s is loaded instead", LIBRARY, found)
    return found


def glibc() -> tuple[int, ...]:
    """Return the version of the C library; zeros if it is another one."""
    try:
        words = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        words = ""
    found = re.search(r"(\d+)\.(\d+)", words)
    return tuple(map(int, found.groups())) if found else (0, 0)


def repaired(folder: Path) -> Path | None:
    """Return MXNet's library in a folder of the cache where the one of a package would be refused; None if not.

    Libraries next to it are copied if they ask as well, and linked else: the library finds them in its own folder.
    """
    libraries = sorted(path for path in folder.glob("*.so*") if path.is_file())
    asking = [path for path in libraries if flags_at(path) is not None]
    if not asking:
        return None
    identity = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in libraries]
    name = f"mxnet-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}"
    place = folders.cache_folder(name) or folders.until_the_end("clgraft-mxnet-")
    for path in libraries:
        copy = place / path.name
        if copy.exists():
            continue
        if path in asking:
            write_whole(copy, without_flag(path), 0o600)
        else:
            with contextlib.suppress(FileExistsError):  # of another process
                copy.symlink_to(path)
    return place / LIBRARY if (place / LIBRARY).exists() else None


def flags_at(path: Path) -> int | None:
    """Return where the flags of a library's stack stand in its file if they say executable; else None."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":  # 64 bits, the low byte first
            return None
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(start)
        table = file.read(size * count)
    for i in range(count):
        if len(table) < (i + 1) * size or size < 8:
            return None
        kind, flags = struct.unpack_from("<II", table, i * size)
        if kind == GNU_STACK and flags & EXECUTABLE:
            return int(start + i * size + 4)
    return None


def without_flag(path: Path) -> bytes:
    """Return the content of a library whose stack is not executable."""
    place = flags_at(path)
    assert place is not None
    data = bytearray(path.read_bytes())
    data[place] &= ~EXECUTABLE
    return bytes(data)
