"""Declarations of OpenCL's functions for PoCL 3, whose own header takes longer to read than many kernels to compile."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from clgraft.core.planning.device import POCL
from clgraft.core.runtime.sources import COMMENT, KERNELS, WORD

FILE = KERNELS / "common" / "pocl.cl"
WITHOUT_HEADER = "-D_OPENCL_H_"  # what the header defines in its first line, to be read once
VERSION = re.compile(r"\bpocl 3\.", re.I)
DECLARATION = re.compile(r"^DECLARE_(\w+)\((\w+)\b.*\n", re.M)
PASTED = re.compile(r"\bCAT\((\w{3,}),")  # the beginnings of names that macros put together
SIZED = re.compile(r"\b([a-z_]+)(?:2|4|8|16)\b")


def possible(cl_device: Any) -> bool:
    """Return whether a device's compiler can go without its header."""
    platform = cl_device.platform
    return POCL in platform.name.lower() and bool(VERSION.search(platform.version))


def declarations(source: str, macros: str, storage: int) -> str:
    """Return what stands in front of a kernel that is built without the header.

    Parameters
    ----------
    source, macros : str
        The kernel's text, and the lines in front of it.
    storage : int
        The prelude's STORAGE.
    """
    return f"#define STORAGE {storage}\n" + _lines(_names(source) | _names(macros))


@cache
def _names(text: str) -> frozenset[str]:
    """Return the words of a text, and ``vload#`` for ``vload16``, ``vload*`` for ``CAT(vload, VL)``."""
    code = COMMENT.sub("", text)
    sized = (f"{word}#" for word in SIZED.findall(code))
    return frozenset((*WORD.findall(code), *sized, *(f"{beginning}*" for beginning in PASTED.findall(code))))


@cache
def _lines(names: frozenset[str]) -> str:
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))

    def kept(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "MOVES":  # of vectors of a type
            used = not names.isdisjoint((name + "#", name + "*"))
        else:
            used = not names.isdisjoint((name, name + "#")) or name.startswith(beginnings)
        return found[0] if used else ""

    return DECLARATION.sub(kept, FILE.read_text())
