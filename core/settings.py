"""Every environment variable of clgraft, in one table: what it takes, its default and what it does.

A setting is read where it is needed, each time, so that a program may change it. One that has a wrong value raises an
error there. Settings that C reads itself are part of the table, too; `check` reads them for their errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clgraft.core.errors import ArgumentError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Setting:
    """An environment variable.

    Attributes
    ----------
    name : str
    where : str
        What errors start with.
    expected : str
        What a value may be, for errors and for the documentation.
    effect : str
        What it does, for `clgraft cache --help` and the like.
    parse : callable
        Returns what a text means; raises ValueError for a wrong one.
    default : str
        The text that stands for an empty variable and for none.
    documented : bool
        Whether it is for users: others hand something from one process to another.
    """

    name: str
    where: str
    expected: str
    effect: str
    parse: Callable[[str], Any] = str
    default: str = ""
    documented: bool = True

    def text(self) -> str:
        """Return the variable's text without blanks around it, the default if it is empty or not set."""
        return os.environ.get(self.name, "").strip() or self.default

    def value(self) -> Any:
        """Return what the variable means.

        Raises
        ------
        ArgumentError
            If it holds something else.
        """
        text = self.text()
        try:
            return self.parse(text)
        except ValueError:
            raise ArgumentError(f"[{self.where}] got {self.name}={text!r}, expected {self.expected}") from None


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of one word of several, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return parse


def words_of(words: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words between commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(filter(None, text.split(",")))
        if not set(found) <= set(words):
            raise ValueError(text)
        return found

    return parse


def whole_number(least: int, most: int) -> Callable[[str], int | None]:
    """Return a parser of a whole number within bounds; None for no text."""

    def parse(text: str) -> int | None:
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return parse


def nbytes(text: str) -> int | None:
    """Return a number of bytes, written with the letters K, M and G for KiB, MiB and GiB; None for ``off``."""
    if text.upper() == "OFF":
        return None
    found = re.fullmatch(r"([0-9]{1,15})\s*([KMG]?)(?:I?B)?", text.upper())
    if not found:
        raise ValueError(text)
    return int(found[1]) * UNITS[found[2]]


def amounts_of(names: Sequence[str]) -> Callable[[str], dict[str, int]]:
    """Return a parser of amounts by name such as ``nodes=1e6,bytes=8e9``, each name at most once."""

    def parse(text: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in text.split(",") if text else ():
            match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,20}(?:\.\d{1,20})?(?:[eE]\d{1,2})?)\s*", part)
            if match is None or match[1] not in names or match[1] in found or float(match[2]) > 2**62:
                raise ValueError(text)
            found[match[1]] = int(float(match[2]))
        return found

    return parse


POLICIES = ("off", "cached", "full")
PRECISIONS = ("float32", "tf32")
ONNX_AMOUNTS = ("nodes", "bytes", "operations", "turns")
WINOGRAD_TILES = ("on", "off", "2", "4", "0")

DEVICE = Setting("CLGRAFT_DEVICE", "device", "'cpu', 'gpu', part of a name, or numbers such as 0:1", "device to use")
CACHE = Setting("CLGRAFT_CACHE", "cache", "a folder, or off", "folder of compiled programs and tuning results")
CACHE_LIMIT = Setting(
    "CLGRAFT_CACHE_LIMIT", "cache", "bytes such as 512M, or off", "most bytes of compiled programs", nbytes, "512M"
)
BUILD_PROCESSES = Setting(
    "CLGRAFT_BUILD_PROCESSES",
    "build",
    "a number of processes up to 9999",
    "processes that build a graph's kernels",
    whole_number(0, 9999),
)
TUNE = Setting("CLGRAFT_TUNE", "tuning", f"one of {POLICIES}", "use of measured choices", one_of(POLICIES), "cached")
VERBOSE = Setting(
    "CLGRAFT_VERBOSE",
    "verbose",
    "words of plan, run and start between commas",
    "lines for plans and runs",
    words_of(("plan", "run", "start")),
)
VERBOSE_FILE = Setting("CLGRAFT_VERBOSE_FILE", "verbose", "a file", "file for the lines of CLGRAFT_VERBOSE")
PRECISION = Setting(
    "CLGRAFT_PRECISION",
    "precision",
    " or ".join(map(repr, PRECISIONS)),
    "precision of products on matrix units",
    one_of(PRECISIONS),
    "float32",
)
WINOGRAD = Setting(
    "CLGRAFT_WINOGRAD",
    "conv",
    f"one of {WINOGRAD_TILES[:4]}",
    "tiles of Winograd's method",
    one_of(WINOGRAD_TILES),
    "on",
)
GRAPH = Setting("CLGRAFT_GRAPH", "graph", "names of passes, or -name to switch one off", "passes of graphs")
COPY_THREADS = Setting(
    "CLGRAFT_COPY_THREADS", "copy", "a number from 1 to 16", "threads that copy host arrays", whole_number(1, 16)
)
UPDATE_THREADS = Setting(
    "CLGRAFT_UPDATE_THREADS", "optimizer", "a number from 1 to 64", "threads of optimizers", whole_number(1, 64)
)
CAFFE_REPLACE = Setting("CLGRAFT_CAFFE_REPLACE", "caffe", "all, or types of Caffe", "types that C++ layers serve")
CAFFE_REGIONS = Setting("CLGRAFT_CAFFE_REGIONS", "caffe", "none, or blobs to keep", "regions of C++ layers")
CAFFE_LIBRARY = Setting("CLGRAFT_CAFFE_LIBRARY", "native", "a file", "library of C++ layers")
ONNX_LIMITS = Setting(
    "CLGRAFT_ONNX_LIMITS",
    "onnx",
    f"numbers for some of {ONNX_AMOUNTS}, such as nodes=1e6,bytes=8e9",
    "what a model may need of the host",
    amounts_of(ONNX_AMOUNTS),
)
PYTHON = Setting("CLGRAFT_PYTHON", "python", "an interpreter", "Python that libclgraft.so starts")
CAFFE_PYTHON = Setting(
    "CLGRAFT_CAFFE_PYTHON", "caffe", "a version", "Python that Caffe's command contains", documented=False
)
CAFFE_SITES = Setting("CLGRAFT_CAFFE_SITES", "caffe", "folders", "packages for that Python", documented=False)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
READ_BY_C = (VERBOSE, COPY_THREADS, UPDATE_THREADS)


def check() -> None:
    """Check the settings that C reads, where a wrong value counts as none.

    Raises
    ------
    ArgumentError
        If one holds something else than it may.
    """
    for setting in READ_BY_C:
        setting.value()
