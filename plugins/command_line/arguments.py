"""Types of arguments that several commands take; what cannot be read is said in words."""

from __future__ import annotations

import argparse
from pathlib import Path

from clgraft.core.files import why_unwritable

DEVICE_HELP = "cpu, gpu, part of a name, 0:1 (default: CLGRAFT_DEVICE, else PYOPENCL_CTX)"


def shape(text: str) -> tuple[str, list[int]]:
    """Read the shape of an input: ``NAME=N,N``, numbers from 0."""
    name, _, sizes = text.partition("=")
    words = [size.strip() for size in sizes.split(",")]
    if not name or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"got {text}, expected NAME=N,N,... with whole numbers from 0")
    return name, [int(word) for word in words]


def words(text: str) -> list[str]:
    """Read words between commas, at least one."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError("got no word, expected words between commas")
    return found


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text}, expected seconds above 0")
    return value


def count(text: str) -> int:
    """Read a whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number from 1")
    return value


def counts(text: str) -> list[int]:
    """Read whole numbers from 1 between commas."""
    return [count(word) for word in words(text)]


def new_file(text: str) -> Path:
    """Read the path of a file to write: refused before anything runs if it is a folder, or in none."""
    path = Path(text)
    fault = why_unwritable(path)
    if fault:
        raise argparse.ArgumentTypeError(f"got {text}, {fault}")
    return path


def new_folder(text: str) -> Path:
    """Read the path of a folder to write to: refused before anything runs if it is a file."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"got {text}, expected a folder")
    return path


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add ``--shape``, which may be given several times and becomes the list `shape` of names and sizes."""
    parser.add_argument(
        "--shape",
        type=shape,
        action="append",
        default=[],
        metavar="NAME=N,N",
        help="the shape of an input, for models that do not hold it",
    )


def add_regions(parser: argparse.ArgumentParser) -> None:
    """Add ``--regions``: the model is swapped with regions."""
    parser.add_argument(
        "--regions", action="store_true", help="of models: let connected operators run as one graph (see swap)"
    )
