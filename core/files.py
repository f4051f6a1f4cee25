"""Files that users name: those to read, with errors that say what is wrong and what to do, and those to write.

Regular files are written whole or not at all, pipes and devices as streams, and nobody else's files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from clgraft.core.errors import ClgraftError, hint

STDIN = "-"
UNFINISHED = ".new-"  # how the name of a file begins until all of it is written
MOST_NAMES = 1000  # of a folder, that are compared with a wrong one
# open files of a process: not to be replaced even if they are regular ones
_OPEN_FILE = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")


class FileError(ClgraftError, ValueError):
    """Raised for a file that is missing, not of the expected kind, or not to be read or written."""


def is_stream(path: Path) -> bool:
    """Return whether a path is standard input, a pipe, a device or the like, and no regular file or folder."""
    if str(path) == STDIN or _OPEN_FILE.fullmatch(str(path)):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def read_file(path: Path, where: str, expected: str) -> bytes:
    """Return the content of a file that a user names, or of a stream.

    Parameters
    ----------
    path : Path
    where : str
        What errors start with.
    expected : str
        What the file should be, for errors.

    Raises
    ------
    FileError
        With the path, the reason and what to do.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unread(path, where, expected, error) from None


def expect_file(path: Path, where: str, expected: str, streams: bool = False) -> Path:
    """Return the path of a file that a user names and that can be read; nothing is read of it.

    Parameters
    ----------
    path : Path
    where, expected : str
        As of `read_file`.
    streams : bool
        Whether it may be a stream.

    Raises
    ------
    FileError
        With the path, the reason and what to do.
    """
    if is_stream(path):
        if streams:
            return path
        raise FileError(f"[{where}] got {path}, which is a stream; expected {expected}, which is read several times")
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise _unread(path, where, expected, error) from None


def _unread(path: Path, where: str, expected: str, error: OSError) -> FileError:
    """Return the error for a file that cannot be read: path, reason, what is expected, and names that are near."""
    near = ""
    if isinstance(error, IsADirectoryError):
        reason = "which is a folder"
    elif not isinstance(error, FileNotFoundError):
        reason = f"which cannot be read: {error.strerror or error}"
    elif not path.parent.is_dir():
        reason = f"which does not exist, nor does the folder {path.parent}"
    else:
        with contextlib.suppress(OSError):
            near = hint(path.name, sorted(os.listdir(path.parent))[:MOST_NAMES])
        reason = "which does not exist" + ("" if near or path.is_absolute() else f" in {Path.cwd()}")
    return FileError(f"[{where}] got {path}, {reason}; expected {expected}{near}")


def why_unwritable(path: Path) -> str:
    """Return why a file or a stream cannot be written, and what to do; empty if nothing speaks against it."""
    if is_stream(path):
        return ""
    if path.is_dir():
        return "which is a folder; expected a file"
    if not path.parent.is_dir():
        return f"whose folder does not exist; expected one that does: mkdir -p {path.parent}"
    return ""


def write_models(
    outputs: Mapping[Path, bytes], inputs: Collection[Path], marks: Collection[bytes], force: bool
) -> None:
    """Write the files of swapped models.

    A regular file is replaced as a whole and keeps its permissions; a symbolic link stays and its target is written.
    Streams are written through.

    Parameters
    ----------
    outputs : mapping of Path to bytes
        What to write.
    inputs : collection of Path
        Files that were read; they are never written.
    marks : collection of bytes
        What only models hold that clgraft has swapped: a file with one of them may be overwritten.
    force : bool
        Whether to overwrite files that clgraft did not write.

    Raises
    ------
    FileError
        Before anything is written if a file was read or was not written by clgraft; if writing fails.
    """
    read = {path.resolve() for path in inputs}
    for path, data in outputs.items():
        if is_stream(path):
            continue
        fault = why_unwritable(path)
        if fault:
            raise FileError(f"[swap] got {path} to write to, {fault}")
        if path.resolve() in read:
            raise FileError(f"[swap] got {path} to write to, expected a file other than those read")
        if not force and not _may_replace(path, data, marks):
            raise FileError(
                f"[swap] got {path}, which exists and was not written by clgraft; expected to write it anew "
                "(--force overwrites it)"
            )
    for path, data in outputs.items():
        try:
            if is_stream(path):
                # neither created nor truncated: it may be an open file of the shell's
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                    stream.write(data)
            else:
                target = Path(os.path.realpath(path))
                mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
                write_whole(target, data, mode)
        except OSError as error:
            raise FileError(f"[swap] got {path} to write to, which failed: {error.strerror}") from None


def _may_replace(path: Path, new: bytes, marks: Collection[bytes]) -> bool:
    """Return whether a file may be replaced: it is missing, empty, the same, or clgraft's."""
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise FileError(f"[swap] got {path} to write to, which cannot be read: {error.strerror}") from None
    return not old.strip() or old == new or any(mark in old for mark in marks)


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file so that others see all of it or nothing; without `mode` it is this user's alone."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
