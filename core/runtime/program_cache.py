"""Compiled programs on disk, under a key that holds everything that can change them.

A file is: a magic line, the digest of what follows, the full key as text, and the binary. One that is cut, altered or
belongs to another key is built anew. Without a usable folder everything works, only slower.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

from clgraft import __version__ as VERSION
from clgraft.core.errors import BuildError
from clgraft.core.runtime import drivers as runtimes

MAGIC = b"clgraft program 1\n"
FOLDER = "programs"
# environment variables that change what PoCL, Intel's compilers and pyopencl make of a source
STEERING = ("POCL_", "CL_CONFIG_", "IGC_", "PYOPENCL_BUILD_OPTIONS")
STEERING_NOTHING = ("POCL_AFFINITY", "POCL_CACHE_DIR")  # of those that start like it


def _folder() -> Path | None:
    base = runtimes.cache_folder()
    if base is None:
        return None
    folder = base / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if runtimes.owned(folder) else None


def steering() -> list[tuple[str, str]]:
    """Give the environment variables that change what compilers make of a source, with their values, sorted."""
    names = (name for name in os.environ if name.startswith(STEERING) and name not in STEERING_NOTHING)
    return [(name, os.environ[name]) for name in sorted(names)]


def key_of(cl_device: Any, source: str, options: tuple[str, ...]) -> str:
    """Give the key's text: source with its includes, options, device, driver, what steers compilers, our version."""
    platform = cl_device.platform
    return json.dumps(
        {
            "clgraft": VERSION,
            "platform": [platform.name, platform.version],
            "device": [cl_device.name, cl_device.version, cl_device.driver_version, cl_device.vendor],
            "options": options,
            "environment": steering(),
            "source": source,
        },
        sort_keys=True,
    )


def pack(key: str, binary: bytes) -> bytes:
    """Give a cache file's content."""
    body = len(key.encode()).to_bytes(8, "little") + key.encode() + binary
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes, key: str) -> bytes | None:
    """Give a cache file's binary, or None if the file is damaged or another key's."""
    head = len(MAGIC) + 32
    body = content[head:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != content[len(MAGIC) : head]:
        return None
    length = int.from_bytes(body[:8], "little")
    return body[8 + length :] if body[8 : 8 + length] == key.encode() else None


def _compile(cl_context: Any, source: str, options: tuple[str, ...]) -> Any:
    import pyopencl as cl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # some compilers talk when all is well
            no_cache: Any = False  # pyopencl's own cache would know less than our key
            return cl.Program(cl_context, source).build(options=list(options), cache_dir=no_cache)
    except cl.RuntimeError as error:
        raise BuildError(
            f"[kernel] got a compiler error, expected a program (options {' '.join(options)}):\n{error}"
        ) from None


def _load(cl_context: Any, cl_device: Any, path: Path, key: str, options: tuple[str, ...]) -> Any:
    import pyopencl as cl

    try:
        binary = unpack(path.read_bytes(), key) if runtimes.owned(path) else None
        return cl.Program(cl_context, [cl_device], [binary]).build(options=list(options)) if binary else None
    except (OSError, cl.Error):
        return None


def build(cl_context: Any, cl_device: Any, source: str, options: tuple[str, ...]) -> Any:
    """Give a built program, from the cache where it is there.

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
    folder = _folder()
    if folder is None:
        return _compile(cl_context, source, options)
    key = key_of(cl_device, source, options)
    path = folder / hashlib.sha256(key.encode()).hexdigest()
    program = _load(cl_context, cl_device, path, key, options)
    if program is not None:
        return program
    program = _compile(cl_context, source, options)
    try:
        binary = program.get_info(_binaries())[0]
        if binary:
            runtimes.write_atomically(path, pack(key, binary))
    except Exception:  # a full disk or a driver without binaries: the next process compiles again
        pass
    return program


def _binaries() -> Any:
    import pyopencl as cl

    return cl.program_info.BINARIES
