"""Every environment variable that clgraft reads, in one table: what it takes, its default and what it does. Those of
single drivers are known to their toolchains alone.

A setting is read where it is needed, each time, so that a program may change it. One that has a wrong value raises an
error there, and all of them are checked before the command line starts and before a device is opened. `unknown` has
the names that are no settings; importing `clgraft.core` warns of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clgraft.core.errors import SettingError, hint, nearest
from clgraft.core.log import warn_once

OURS = "CLGRAFT_"  # what the names of our variables begin with
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
        What a value may be, for errors.
    parse : callable
        Returns what a text means; raises ValueError for a wrong one.
    default : str
        The text that stands for an empty variable and for none.
    values : str
        Some values, as the documentation shows them. Empty if it is not for users: others hand something from one
        process to another.
    effect : str
        What it does. It may have links of the documentation.
    unset : str
        What holds without it, where no text stands for that.
    words : sequence of str
        What a value consists of, where that is known: errors name the nearest ones.
    """

    name: str
    where: str
    expected: str
    parse: Callable[[str], Any] = str
    default: str = ""
    values: str = ""
    effect: str = ""
    unset: str = ""
    words: Sequence[str] = ()

    @property
    def documented(self) -> bool:
        """Whether it is for users."""
        return bool(self.values)

    @property
    def given(self) -> str:
        """The variable's text without blanks around it; empty if it is not set."""
        return os.environ.get(self.name, "").strip()

    def text(self) -> str:
        """Return the variable's text without blanks around it, the default if it is empty or not set."""
        return self.given or self.default

    def value(self) -> Any:
        """Return what the variable means.

        Raises
        ------
        SettingError
            If it holds something else.
        """
        text = self.text()
        try:
            return self.parse(text)
        except ValueError:
            error = f"[{self.where}] got {self.name}={text!r}, expected {self.expected}{self._hint(text)}"
            raise SettingError(error) from None

    def _hint(self, text: str) -> str:
        """Return the known words nearest to the first wrong one of a text, for the end of an error."""
        parts = [part.strip().lstrip("-") for part in re.split("[,=]", text)]
        return next((found for part in parts if part not in self.words and (found := hint(part, self.words))), "")


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


def switches_of(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of words between commas, each with or without a ``-`` in front; it returns the text."""

    def parse(text: str) -> str:
        found = {word.strip().lstrip("-") for word in text.split(",") if word.strip()}
        if not found <= set(words):
            raise ValueError(text)
        return text

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
PRODUCTS = ("float32", "tf32")  # how exactly float32 is multiplied
MIXED = ("float16", "bfloat16")  # what graphs are computed in that are given in float32
PRECISIONS = (*PRODUCTS, *MIXED)
ONNX_AMOUNTS = ("nodes", "bytes", "operations", "turns")
VERBOSE_WORDS = ("plan", "run", "start")
WINOGRAD_TILES = ("on", "off", "2", "4", "0")
# the passes of graphs in the order in which they run; core/graph/passes has their functions
GRAPH_PASSES = (
    *(
        "scales",
        "dead",
        "duplicates",
        "fold",
        "argmax",
        "layouts",
        "norms",
        "biases",
        "masks",
        "chains",
        "residuals",
        "epilogues",
        "separable",
        "gradients",
    ),
    *("casts", "updates", "totals", "parts", "views", "statistics", "sums", "recompute", "order", "prepare", "queues"),
)
_SWITCHES = (*GRAPH_PASSES, "all")
# what `mxnet_ops.engine.repairs` does around MXNet on systems that are younger than it
REPAIRS = ("names", "numbers", "distutils", "stack")

DEVICE = Setting(
    "CLGRAFT_DEVICE",
    "device",
    "'cpu', 'gpu', part of a name, or numbers such as 0:1",
    values="`cpu`, `gpu`, part of a name, `0:1`",
    effect="the device that computes; by default the best one",
    unset="the best one",
)
PYOPENCL_CTX = Setting(
    "PYOPENCL_CTX",
    "device",
    "what pyopencl reads",
    values="as pyopencl reads it: `0`, `0:1`, names",
    effect="the device if `CLGRAFT_DEVICE` is not set",
    unset="the best one",
)
CACHE = Setting(
    "CLGRAFT_CACHE",
    "cache",
    "a folder, or off",
    values="a folder, or `off`",
    effect="where compiled programs and tuning results are kept",
    unset="clgraft in the user's cache folder",
)
CACHE_LIMIT = Setting(
    "CLGRAFT_CACHE_LIMIT",
    "cache",
    "bytes such as 512M, or off",
    nbytes,
    "512M",
    "`512M` (default), `2G`, `off`",
    "most bytes of compiled programs; the oldest go first",
    words=("off",),
)
BUILD_PROCESSES = Setting(
    "CLGRAFT_BUILD_PROCESSES",
    "build",
    "a number of processes up to 9999",
    whole_number(0, 9999),
    values="a number; `0` for none",
    effect="processes that build a graph's kernels, see above",
    unset="the cores, at most 8",
)
TUNE = Setting(
    "CLGRAFT_TUNE",
    "tuning",
    f"one of {POLICIES}",
    one_of(POLICIES),
    "cached",
    "`cached` (default), `full`, `off`",
    "use of measured choices, see [tuning](tuning.md)",
    words=POLICIES,
)
VERBOSE = Setting(
    "CLGRAFT_VERBOSE",
    "verbose",
    "words of plan, run and start between commas",
    words_of(VERBOSE_WORDS),
    values="`plan`, `run`, `plan,run`",
    effect="lines for plans and runs: [command line](command-line.md)",
    unset="no lines",
    words=VERBOSE_WORDS,
)
VERBOSE_FILE = Setting(
    "CLGRAFT_VERBOSE_FILE",
    "verbose",
    "a file",
    values="a file",
    effect="receives these lines; stderr if it is not set",
    unset="stderr",
)
PRECISION = Setting(
    "CLGRAFT_PRECISION",
    "precision",
    f"one of {PRECISIONS}",
    one_of(PRECISIONS),
    "float32",
    "`float32` (default), `tf32`, `float16`, `bfloat16`",
    "[of products](graphs.md#mixed-precision)",
    words=PRECISIONS,
)
WINOGRAD = Setting(
    "CLGRAFT_WINOGRAD",
    "conv",
    f"one of {WINOGRAD_TILES[:4]}",
    one_of(WINOGRAD_TILES),
    "on",
    "`on` (default), `off`, `2`, `4`",
    "Winograd's method: all tiles, none, or one size",
    words=WINOGRAD_TILES[:2],
)
GRAPH = Setting(
    "CLGRAFT_GRAPH",
    "graph",
    f"names of passes ({', '.join(_SWITCHES)}), or -name to switch one off",
    switches_of(_SWITCHES),
    values="names of passes, `-name` to switch off",
    effect="the passes of [graphs](graphs.md#passes)",
    unset="all passes",
    words=_SWITCHES,
)
GOMP_SPINCOUNT = Setting(
    "GOMP_SPINCOUNT",
    "openmp",
    "what GNU's OpenMP reads",
    values="a number; 20000 or less with `clgraft.mxnet_ops`",
    effect="how long [threads wait](#threads)",
    unset="20000 with clgraft.mxnet_ops, less with more than four processors",
)
MXNET_MKLDNN_ENABLED = Setting(
    "MXNET_MKLDNN_ENABLED",
    "mxnet",
    "what MXNet reads",
    default="1",
    values="`1` (default), `0`",
    effect="MXNet's own: without oneDNN",
)
MXNET_LIBRARY_PATH = Setting("MXNET_LIBRARY_PATH", "mxnet", "a file")
MXNET_REPAIRS = Setting(
    "CLGRAFT_MXNET_REPAIRS",
    "mxnet",
    f"names of repairs ({', '.join(REPAIRS)}, all), or -name to switch one off",
    switches_of((*REPAIRS, "all")),
    values="`-stack`, `-all`, names",
    effect="[repairs](#mxnet-on-newer-systems) of MXNet on newer systems",
    unset="all repairs",
    words=(*REPAIRS, "all"),
)
COPY_THREADS = Setting(
    "CLGRAFT_COPY_THREADS",
    "copy",
    "a number from 1 to 16",
    whole_number(1, 16),
    values="1 to 16",
    effect="threads that copy host arrays for a GPU; by default half of the cores, at most 8",
    unset="half of the cores, at most 8",
)
UPDATE_THREADS = Setting(
    "CLGRAFT_UPDATE_THREADS",
    "optimizer",
    "a number from 1 to 64",
    whole_number(1, 64),
    values="1 to 64",
    effect="threads of [optimizers](mxnet.md#optimizers); by default the cores, at most 12",
    unset="the cores, at most 12",
)
CAFFE_REPLACE = Setting(
    "CLGRAFT_CAFFE_REPLACE",
    "caffe",
    "all, or types of Caffe",
    values="`all`, or `Convolution,ReLU`",
    effect="Caffe's types that [C++ layers](caffe.md) serve",
    unset="all with clgraft caffe, else none",
)
CAFFE_REGIONS = Setting(
    "CLGRAFT_CAFFE_REGIONS",
    "caffe",
    "none, or blobs to keep",
    values="`none`, or blobs to keep",
    effect="[regions](caffe.md) of these layers, in unchanged nets",
    unset="no regions",
)
CAFFE_LIBRARY = Setting(
    "CLGRAFT_CAFFE_LIBRARY",
    "native",
    "a file",
    values="a file",
    effect="the library of these layers; by default one in clgraft's cache",
    unset="one in clgraft's cache",
)
ONNX_LIMITS = Setting(
    "CLGRAFT_ONNX_LIMITS",
    "onnx",
    f"numbers for some of {ONNX_AMOUNTS}, such as nodes=1e6,bytes=8e9",
    amounts_of(ONNX_AMOUNTS),
    values="`nodes=1e6,bytes=8e9`",
    effect="what a model may need: [limits](onnx.md#limits)",
    unset="nodes=1e5,bytes=4.3e9,operations=4e9,turns=1e4",
    words=ONNX_AMOUNTS,
)
CC = Setting(
    "CC",
    "embed",
    "a command",
    values="a command",
    effect="the C compiler of `libclgraft.so`",
    unset="Python's, cc, gcc or clang",
)
CXX = Setting(
    "CXX",
    "native",
    "a command",
    values="a command",
    effect="the compiler of [C++ layers](caffe.md)",
    unset="c++, g++ or clang++",
)
CXXFLAGS = Setting(
    "CXXFLAGS",
    "native",
    "options",
    values="options",
    effect="further options of that compiler",
    unset="none",
)
CAFFE_ROOT = Setting(
    "CAFFE_ROOT",
    "caffe",
    "a folder",
    values="a folder",
    effect="Caffe, its library and its command, where they are in no folder of the system",
    unset="the system's",
)
XDG_CACHE_HOME = Setting(
    "XDG_CACHE_HOME",
    "cache",
    "a folder",
    values="a folder",
    effect="the user's cache folder, in which clgraft's is without `CLGRAFT_CACHE`",
    unset="~/.cache",
)
PYTHON = Setting(
    "CLGRAFT_PYTHON",
    "python",
    "an interpreter",
    values="an interpreter",
    effect="the Python that `libclgraft.so` starts, of the version that built it",
    unset="the one that built it",
)
CAFFE_PYTHON = Setting("CLGRAFT_CAFFE_PYTHON", "caffe", "a version of Python")
CAFFE_SITES = Setting("CLGRAFT_CAFFE_SITES", "caffe", "folders of packages")
PEER_THREADS = Setting("CLGRAFT_PEER_THREADS", "bench", "a number of threads")
CHOSEN_THREADS = Setting("CLGRAFT_CHOSEN_THREADS", "bench", "what a peer's threads were chosen from, as JSON")
WARNED = Setting("CLGRAFT_WARNED_OF", "settings", "names that a parent process has warned of")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
OF_TESTS = ("CLGRAFT_TEST_FAULT", "CLGRAFT_TEST_RECORD")  # of clgraft's own tests
# what does not decide how a graph is planned: where and how much, what is told, and what others than planners read
INDECISIVE = (
    *(one.name for one in (DEVICE, CACHE, CACHE_LIMIT, BUILD_PROCESSES, VERBOSE, VERBOSE_FILE, COPY_THREADS)),
    *(one.name for one in (UPDATE_THREADS, ONNX_LIMITS, PYTHON, WARNED)),
)


def check() -> None:
    """Check every setting.

    Raises
    ------
    SettingError
        If one or more hold something else than they may: all of them, a line for each.
    """
    errors = wrong()
    if errors:
        raise SettingError("\n".join(errors.values()))


def wrong() -> dict[str, str]:
    """Return the errors of settings that hold something else than they may, by their names."""
    errors = {}
    for setting in ALL:
        try:
            setting.value()
        except SettingError as error:
            errors[setting.name] = str(error)
    return errors


def unknown() -> dict[str, str]:
    """Return what to say of each variable that has a name like ours and is none, by its name."""
    known = {setting.name for setting in ALL}.union(OF_TESTS)
    words = [one.name[len(OURS) :] for one in ALL if one.documented and one.name.startswith(OURS)]
    found = {}
    for name in sorted(name for name in os.environ if name.startswith(OURS) and name not in known):
        near = ", ".join(OURS + word for word in nearest(name[len(OURS) :], words))
        found[name] = f"got {name}, which is no setting, so nothing reads it" + (f"; nearest: {near}" if near else "")
    return found


def deciding() -> list[tuple[str, str]]:
    """Return the variables with names like ours that may decide how a graph is planned, with their values, sorted."""
    names = (name for name in os.environ if name.startswith(OURS) and name not in INDECISIVE)
    return [(name, os.environ[name]) for name in sorted(names)]


def warn_of_unknown() -> None:
    """Warn of variables that have names like ours and are none, once in a process and its children."""
    warned = WARNED.given.split(",")
    found = {name: text for name, text in unknown().items() if name not in warned}
    for text in found.values():
        warn_once(f"[settings] {text}; `clgraft settings` lists all")
    if found:
        os.environ[WARNED.name] = ",".join(filter(None, [*warned, *found]))


def markdown() -> str:
    """Return the table of the documentation."""
    rows = [f"| `{one.name}` | {one.values} | {one.effect} |" for one in ALL if one.documented]
    return "\n".join(["| variable | value | effect |", "|---|---|---|", *rows])
