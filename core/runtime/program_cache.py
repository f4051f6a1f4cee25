"""Compiled programs on disk, under a key that holds everything that can change them.

A file is: a magic line, the digest of what follows, the full key as text, and the binary. One that is cut, altered or
belongs to another key is built anew. Without a usable folder everything works, only slower. Programs of drivers that
keep them in a cache of their own are left to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from clgraft import __version__ as VERSION
from clgraft.core import files
from clgraft.core.errors import BuildError
from clgraft.core.runtime import cache_limit, folders, toolchains

MAGIC = b"clgraft program 1\n"
FOLDER = "programs"
STEERING = "PYOPENCL_BUILD_OPTIONS"  # how names of variables begin that change what pyopencl makes of a source


def folder() -> Path | None:
    """Return the folder of the programs, made on first use; None if there is none."""
    return folders.cache_folder(FOLDER)


def steering() -> list[tuple[str, str]]:
    """Return the environment variables that change what compilers make of a source, with their values, sorted."""
    names = {*toolchains.steering(), *(name for name in os.environ if name.startswith(STEERING))}
    return [(name, os.environ[name]) for name in sorted(names)]


def key_of(cl_device: Any, source: str, options: tuple[str, ...], **more: str) -> str:
    """Return the key's text: source with its includes, options, device, driver, what steers compilers, our version.

    What is given by name is part of the key, too.
    """
    platform = cl_device.platform
    return json.dumps(
        {
            "clgraft": VERSION,
            "platform": [platform.name, platform.version],
            "device": [cl_device.name, cl_device.version, cl_device.driver_version, cl_device.vendor],
            "options": options,
            "environment": steering(),
            "source": source,
            **more,
        },
        sort_keys=True,
    )


def pack(key: str, binary: bytes) -> bytes:
    """Return a cache file's content."""
    body = len(key.encode()).to_bytes(8, "little") + key.encode() + binary
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes, key: str) -> bytes | None:
    """Return a cache file's binary, or None if the file is damaged or another key's."""
    head = len(MAGIC) + 32
    body = content[head:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != content[len(MAGIC) : head]:
        return None
    length = int.from_bytes(body[:8], "little")
    return body[8 + length :] if body[8 : 8 + length] == key.encode() else None


class _QuietCompilers:
    """Hides pyopencl's warning that a compiler has said something, while any thread builds: some always talk.

    `warnings.catch_warnings` is not for threads: the first that ends would bring the warnings of the others back.
    """

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._filter: Any = None

    def __enter__(self) -> None:
        import pyopencl as cl

        with self._lock:
            self._users += 1
            if self._filter not in warnings.filters:
                warnings.simplefilter("ignore", cl.CompilerWarning)
                self._filter = warnings.filters[0]

    def __exit__(self, *_: object) -> None:
        filters: Any = warnings.filters  # a list, which type checkers are not told
        with self._lock:
            self._users -= 1
            if not self._users and self._filter in filters:
                filters.remove(self._filter)


_quiet_compilers = _QuietCompilers()


def _built(program: Any, options: tuple[str, ...]) -> Any:
    with _quiet_compilers:
        no_cache: Any = False  # pyopencl's own cache would know less than our key
        return program.build(options=list(options), cache_dir=no_cache)


def _compile(cl_context: Any, source: str, options: tuple[str, ...]) -> Any:
    import pyopencl as cl

    try:
        return toolchains.of(cl_context.devices[0]).build(cl_context, source, options, _built)
    except cl.RuntimeError as error:
        raise BuildError(
            f"[kernel] got a compiler error, expected a program (options {' '.join(options)}):\n{error}"
        ) from None


def _load(cl_context: Any, cl_device: Any, path: Path, key: str, options: tuple[str, ...]) -> Any:
    import pyopencl as cl

    try:
        binary = unpack(path.read_bytes(), key) if folders.owned(path) else None
        if not binary:
            return None
        program = _built(cl.Program(cl_context, [cl_device], [binary]), options)
        with contextlib.suppress(OSError):
            os.utime(path)  # the program that was used least recently goes first
        return program
    except (OSError, cl.Error):
        return None


def load(cl_context: Any, cl_device: Any, source: str, options: tuple[str, ...]) -> Any | None:
    """Return a program from the cache; None if it is not there."""
    place = None if toolchains.of(cl_device).keeps_programs() else folder()
    if place is None:
        return None
    key = key_of(cl_device, source, options)
    return _load(cl_context, cl_device, place / _name(key), key, options)


def build(cl_context: Any, cl_device: Any, source: str, options: tuple[str, ...]) -> Any:
    """Return a built program, from the cache where it is there.

    Parameters
    ----------
    cl_context : pyopencl.Context
    cl_device : pyopencl.Device
    source : str
        OpenCL C without unresolved includes.
    options : tuple of str

    Returns
    -------
    pyopencl.Program

    Raises
    ------
    BuildError
        With the compiler's log.
    """
    program = load(cl_context, cl_device, source, options)
    if program is None:
        program = _compile(cl_context, source, options)
        store(cl_device, source, options, program)
    return program


def store(cl_device: Any, source: str, options: tuple[str, ...], program: Any) -> None:
    """Put a program into the cache if there is one."""
    place = None if toolchains.of(cl_device).keeps_programs() else folder()
    if place is None:
        return
    key = key_of(cl_device, source, options)
    path = place / _name(key)
    cache_limit.limit()  # a wrong one is an error, and nothing else that fails here is
    try:
        import pyopencl as cl

        binary = program.get_info(cl.program_info.BINARIES)[0]
        if binary:
            content = pack(key, binary)
            cache_limit.make_room(place, path, len(content))
            files.write_whole(path, content)
    except Exception:  # a full disk or a driver without binaries: the next process compiles again
        pass


def kept(key: str) -> bytes | None:
    """Return what is kept under a key, which thereby counts as used; None if it is not there, or damaged."""
    place = folder()
    if place is None:
        return None
    path = place / _name(key)
    try:
        content = unpack(path.read_bytes(), key) if folders.owned(path) else None
        if content:
            os.utime(path)
        return content
    except OSError:
        return None


def keep(key: str, content: bytes) -> None:
    """Put something into the cache under a key, if there is room."""
    place = folder()
    if place is None:
        return
    path, packed = place / _name(key), pack(key, content)
    with contextlib.suppress(OSError):
        cache_limit.make_room(place, path, len(packed))
        files.write_whole(path, packed)


def note_of(cl_device: Any, program: bytes, kernel: str, local_size: tuple[int, ...] | None) -> str:
    """Return the key of a note that a kernel is in the driver's own cache, for work-groups of a size."""
    what = f"{kernel} of {program.hex()} for work-groups of {local_size}"
    return key_of(cl_device, what, (), kept_in=str(toolchains.of(cl_device).cache_folder()))


def is_noted(place: Path, note: str) -> bool:
    """Return whether there is a note, which thereby counts as used."""
    try:
        os.utime(place / _name(note))
        return True
    except OSError:
        return False


def write_note(place: Path, note: str) -> None:
    """Put a note into the cache: a file like that of a program, without a binary."""
    with contextlib.suppress(OSError):
        content = pack(note, b"")
        cache_limit.make_room(place, place / _name(note), len(content))
        files.write_whole(place / _name(note), content)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def key_in(path: Path) -> dict[str, Any] | None:
    """Return the key that a cache file holds; None if it is no cache file."""
    try:
        if not folders.owned(path):
            return None
        with path.open("rb") as file:
            head = file.read(len(MAGIC) + 32 + 8)
            if not head.startswith(MAGIC):
                return None
            found: dict[str, Any] = json.loads(file.read(int.from_bytes(head[-8:], "little")))
            return found
    except (OSError, ValueError, OverflowError, MemoryError):
        return None
