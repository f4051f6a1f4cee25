"""Reads and writes the files of a swap: regular files whole or not at all, pipes and devices as streams."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from clgraft.caffe_layers.swap.rules import MODULE, SwapError

STDIN = "-"
_HEAD = 512  # bytes at the start in which control characters mean binary data
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a\x1b"))
# open files of a process: not to be replaced even if they are regular ones
_OPEN_FILE = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")


def read_text(path: Path) -> str:
    """Read a prototxt so that writing it again gives the same bytes; `-` is standard input.

    Raises
    ------
    SwapError
        When it cannot be read, is empty or binary, or is in an encoding that Caffe cannot read.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == STDIN else path.read_bytes()
    except OSError as error:
        raise SwapError(f"[swap] got {path}, which cannot be read: {error.strerror}") from None
    if not data.strip():
        raise SwapError(f"[swap] got {path}, which is empty, expected a net or a solver")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SwapError(f"[swap] got {path}, which is UTF-16 text, expected UTF-8: Caffe reads nothing else")
    if data.startswith(b"\xef\xbb\xbf"):
        raise SwapError(f"[swap] got {path}, which starts with a byte-order mark, expected none: Caffe cannot read it")
    if b"\0" in data or any(byte in _CONTROL for byte in data[:_HEAD]):
        raise SwapError(f"[swap] got {path}, which is binary, expected a prototxt: caffemodels fit without a swap")
    return data.decode("utf-8", "surrogateescape")


def is_stream(path: Path) -> bool:
    """Return whether a path is standard input, a pipe, a device or the like, and no regular file or folder."""
    if str(path) == STDIN or _OPEN_FILE.fullmatch(str(path)):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def write_files(outputs: dict[Path, str], inputs: set[Path], force: bool) -> None:
    """Write all files.

    A regular file is replaced as a whole and keeps its permissions; a symbolic link stays and its target is written.
    Streams are written through.

    Parameters
    ----------
    outputs : dict of Path to str
        What to write.
    inputs : set of Path
        Files that were read; they are never written.
    force : bool
        Whether to overwrite files that clgraft did not write.

    Raises
    ------
    SwapError
        Before anything is written if a file was read or was not written by clgraft; if writing fails.
    """
    read = {path.resolve() for path in inputs}
    for path, text in outputs.items():
        if is_stream(path):
            continue
        if path.resolve() in read:
            raise SwapError(f"[swap] got {path} to write to, expected a file other than those read")
        if not force and not _may_replace(path, _encoded(text)):
            raise SwapError(
                f"[swap] got {path}, which exists and was not written by clgraft; expected to write it anew "
                "(--force overwrites it)"
            )
    for path, text in outputs.items():
        try:
            if is_stream(path):
                # neither created nor truncated: it may be an open file of the shell's
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                    stream.write(_encoded(text))
            else:
                _replace(Path(os.path.realpath(path)), _encoded(text))
        except OSError as error:
            raise SwapError(f"[swap] got {path} to write to, which failed: {error.strerror}") from None


def _may_replace(path: Path, new: bytes) -> bool:
    """Return whether a file may be replaced: it is missing, empty, the same, or clgraft's."""
    try:
        old = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise SwapError(f"[swap] got {path} to write to, which cannot be read: {error.strerror}") from None
    return not old.strip() or old == new or MODULE.encode() in old or b"  # clgraft was " in old


def _replace(path: Path, data: bytes) -> None:
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
