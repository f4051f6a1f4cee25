"""Reads and writes the prototxts of a swap."""

from __future__ import annotations

import sys
from pathlib import Path

from clgraft.caffe_layers.swap.rules import MODULE, SwapError
from clgraft.core.files import STDIN, FileError, read_file, write_models

_HEAD = 512  # bytes at the start in which control characters mean binary data
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a\x1b"))
MARKS = (MODULE.encode(), b"  # clgraft was ")  # of prototxts that clgraft has written


class SwapFileError(SwapError, FileError):
    """A file of a swap that cannot be read or is not to be written."""


def read_text(path: Path) -> str:
    """Read a prototxt so that writing it again gives the same bytes; `-` is standard input.

    Raises
    ------
    SwapError
        When it cannot be read, is empty or binary, or is in an encoding that Caffe cannot read.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == STDIN else read_file(path, "swap", "a net or a solver")
    except FileError as error:
        raise SwapFileError(str(error)) from None
    if not data.strip():
        raise SwapError(f"[swap] got {path}, which is empty, expected a net or a solver")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SwapError(f"[swap] got {path}, which is UTF-16 text, expected UTF-8: Caffe reads nothing else")
    if data.startswith(b"\xef\xbb\xbf"):
        raise SwapError(f"[swap] got {path}, which starts with a byte-order mark, expected none: Caffe cannot read it")
    if b"\0" in data or any(byte in _CONTROL for byte in data[:_HEAD]):
        raise SwapError(f"[swap] got {path}, which is binary, expected a prototxt: caffemodels fit without a swap")
    return data.decode("utf-8", "surrogateescape")


def write_files(outputs: dict[Path, str], inputs: set[Path], force: bool) -> None:
    """Write all prototxts (see `clgraft.core.files.write_models`).

    Raises
    ------
    SwapError
        Before anything is written if a file was read or was not written by clgraft; if writing fails.
    """
    encoded = {path: text.encode("utf-8", "surrogateescape") for path, text in outputs.items()}
    try:
        write_models(encoded, inputs, MARKS, force)
    except FileError as error:
        raise SwapFileError(str(error)) from None
