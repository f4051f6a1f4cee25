"""The OpenCL C sources in the kernels folder."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from clgraft.core.errors import BuildError

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
INCLUDE = re.compile(r'^\s*#include\s+"([\w./]+)"\s*$', re.M)
# a kernel starts a line with `kernel` or SINGLE, and ends with a brace at the start of a line
DEFINITION = re.compile(r"^(?:kernel|SINGLE)\b[^;{]*?\bvoid\s+(\w+)\s*\(.*?^\}\n", re.M | re.S)
DIRECTIVE = re.compile(r"^\s*#\s*(if|endif|define|undef)\w*\s*(\w*)", re.M)


@cache
def file_source(file: str) -> str:
    """Return the text of a kernel file with its includes in place, each file once, lines numbered as in the files."""
    seen: set[str] = set()

    def read(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        path = KERNELS / name
        if not path.is_file():
            raise BuildError(f"[kernel] got file {name!r}, expected one of the kernels folder")
        pieces, line = [f'#line 1 "{name}"\n'], 1
        text = path.read_text()
        position = 0
        for found in INCLUDE.finditer(text):
            pieces.append(text[position : found.start()])
            line = text.count("\n", 0, found.end()) + 1
            pieces.append("\n" + read(found[1]) + f'\n#line {line} "{name}"')
            position = found.end()
        pieces.append(text[position:] + "\n")
        return "".join(pieces)

    return read("common/prelude.cl") + read(file)


@cache
def kernel_source(file: str, name: str) -> str:
    """Return the text of `file_source` without the other kernels' definitions: what nobody asks for is not compiled.

    Lines keep their numbers. What cannot be taken out alone stays: a kernel in whose text a condition of the
    preprocessor begins or ends, or a macro that others may use, and one whose name is a macro.
    """

    def without(found: re.Match[str]) -> str:
        if found[1] == name or found[1].isupper() or not _stands_alone(found[0]):
            return found[0]
        return "\n" * found[0].count("\n")

    return DEFINITION.sub(without, file_source(file))


def _stands_alone(definition: str) -> bool:
    """Return whether a definition can be left out without a change of what surrounds it."""
    directives = DIRECTIVE.findall(definition)
    words = [word for word, _ in directives]
    macros = {kind: {name for word, name in directives if word == kind} for kind in ("define", "undef")}
    balanced = definition.count("{") == definition.count("}") and words.count("if") == words.count("endif")
    return balanced and macros["define"] <= macros["undef"]
