"""What is repaired around MXNet 1.9.1 so that it is imported and runs on systems that are younger than it.

``CLGRAFT_MXNET_REPAIRS=-stack`` leaves one out. Each says in the log (logger ``clgraft``, level ``INFO``) what it did.

* ``names``: what newer NumPys lack (`numpy_compat`).
* ``numbers``: NumPy 2 writes the numbers of a tuple as ``np.int64(3)``, which MXNet's operators cannot read.
* ``distutils``: MXNet compares versions by this module, which Python 3.12 removed and only setuptools brings along.
* ``stack``: glibc 2.41 loads no library that asks for an executable stack (`executable_stack`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from clgraft.core import settings
from clgraft.core.log import log
from clgraft.mxnet_ops.engine import executable_stack

SETTING = settings.MXNET_REPAIRS
# modules of MXNet that write operators' attributes for its library
WRITERS = ("_ctypes.ndarray", "_ctypes.symbol", "symbol.symbol", "io.io")


def switched_off() -> list[str]:
    """Return the repairs that the setting switches off."""
    on = dict.fromkeys(settings.REPAIRS, True)
    for word in filter(None, (part.strip() for part in SETTING.value().split(","))):
        for name in settings.REPAIRS if word.lstrip("-") == "all" else (word.lstrip("-"),):
            on[name] = not word.startswith("-")
    return [name for name, runs in on.items() if not runs]


def wanted(name: str) -> bool:
    """Return whether a repair is switched on."""
    return name not in switched_off()


@contextlib.contextmanager
def around_import() -> Iterator[None]:
    """Prepare what MXNet's import needs, and after it what its runs need."""
    if "mxnet" in sys.modules:
        yield
        return
    if wanted("stack"):
        executable_stack.repair()
    with warnings.catch_warnings(), _distutils():
        warnings.simplefilter("ignore", SyntaxWarning)  # of MXNet's sources, where they are compiled anew
        yield
    if wanted("numbers") and "(" in repr(np.float64(0)):
        write_numbers()


@contextlib.contextmanager
def _distutils() -> Iterator[None]:
    """Let a module stand in for distutils where there is none."""
    if not wanted("distutils") or importlib.util.find_spec("distutils") is not None:
        yield
        return
    package, version = types.ModuleType("distutils"), types.ModuleType("distutils.version")
    names: Any = version
    names.StrictVersion = names.LooseVersion = Version
    stand_ins = {"distutils": package, "distutils.version": version}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)
    log.info("[mxnet] distutils, which this Python lacks, was stood in for")


class Version:
    """A version of numbers between dots, as distutils compares them."""

    def __init__(self, text: str) -> None:
        self.version = tuple(int(number) for number in re.findall(r"\d+", text.split("+")[0]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.version == other.version

    def __hash__(self) -> int:
        return hash(self.version)

    def __lt__(self, other: Version) -> bool:
        return self.version < other.version

    def __le__(self, other: Version) -> bool:
        return self.version <= other.version

    def __gt__(self, other: Version) -> bool:
        return self.version > other.version

    def __ge__(self, other: Version) -> bool:
        return self.version >= other.version


class _TextType(type):
    """Lets `Text` be used where MXNet's modules use `str`: to write a value, and to ask what is one."""

    def __call__(cls, value: Any = "", *more: Any) -> str:
        return str(value, *more) if more else written(value)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, str)


class Text(metaclass=_TextType):
    """`str` as MXNet's modules use it, with numbers as NumPy 1 writes them."""


def written(value: Any) -> str:
    """Return a value as text, with the numbers of tuples and lists as NumPy 1 writes them."""
    kind = type(value)
    if kind is not tuple and kind is not list:
        return str(value)
    parts = [_inner(each) for each in value]
    if kind is list:
        return f"[{', '.join(parts)}]"
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _inner(value: Any) -> str:
    """Return an element of a tuple as text."""
    if isinstance(value, (tuple, list)):
        return written(value)
    if isinstance(value, np.generic) and not isinstance(value, (np.str_, np.bytes_)):
        return str(value)
    return repr(value)


def write_numbers() -> None:
    """Let MXNet write the attributes of operators with the numbers that its library reads."""
    for name in WRITERS:
        importlib.import_module(f"mxnet.{name}").str = Text  # type: ignore[attr-defined]
    log.info("[mxnet] numbers in attributes are written as NumPy 1 does, where NumPy %s would not", np.__version__)
