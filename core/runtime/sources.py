"""The OpenCL C sources in the kernels folder."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from clgraft.core.errors import BuildError

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
INCLUDE = re.compile(r'^\s*#include\s+"([\w./]+)"\s*$', re.M)


@cache
def kernel_source(file: str) -> str:
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
