"""Declarations of OpenCL's functions for PoCL 3, whose own header takes longer to read than many kernels to compile."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from clgraft.core.runtime.sources import COMMENT, WORD

FILE = Path(__file__).with_suffix(".cl")
# What the header defines in its first line, to be read once. The option defines it as 1, the header as nothing.
WITHOUT_HEADER = "-D_OPENCL_H_"
DECLARATION = re.compile(r"^DECLARE_(\w+)\((\w+)\b.*\n", re.M)
PASTED = re.compile(r"\bCAT\((\w{3,}),")  # the beginnings of names that macros put together
SIZED = re.compile(r"\b([a-z_]+)(?:2|4|8|16)\b")
POINTED = re.compile(r"\b([a-z]+) ?\*|\bTENSOR_OF\((?:const )?([a-z]+),")


def declarations(source: str, macros: str, storage: int) -> str:
    """Return what stands in front of a kernel that is built without the header; it is empty with the header.

    Parameters
    ----------
    source, macros : str
        The kernel's text, and the lines in front of it.
    storage : int
        The prelude's STORAGE.
    """
    return f"#if _OPENCL_H_ + 0\n#define STORAGE {storage}\n{_lines(_names(source) | _names(macros))}#endif\n"


@cache
def _names(text: str) -> frozenset[str]:
    """Return a text's words, and ``int#`` for ``int16``, ``int*`` for ``CAT(int, VL)``, ``->int`` for ``int *``."""
    code = COMMENT.sub("", text)
    sized = (f"{word}#" for word in SIZED.findall(code))
    pasted = (f"{beginning}*" for beginning in PASTED.findall(code))
    pointed = (f"->{word}" for words in POINTED.findall(code) for word in words if word)
    return frozenset((*WORD.findall(code), *sized, *pasted, *pointed))


@cache
def _lines(names: frozenset[str]) -> str:
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))

    def kept(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "MOVES":  # of vectors of a type
            used = not names.isdisjoint((f"{name}#", f"{name}*", f"->{name}"))
        else:
            used = not names.isdisjoint((name, name + "#")) or name.startswith(beginnings)
        return found[0] if used else ""

    return DECLARATION.sub(kept, FILE.read_text())
