"""The OpenCL C sources in the kernels folder."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

from clgraft.core.errors import BuildError

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
INCLUDE = re.compile(r'^\s*#include\s+"([\w./]+)"\s*$', re.M)
# a kernel starts a line with `kernel` or SINGLE, and ends with a brace at the start of a line
DEFINITION = re.compile(r"^(?:kernel|SINGLE)\b[^;{]*?\bvoid\s+(\w+)\s*\(.*?^\}\n", re.M | re.S)
# a function that kernels call: its type starts a line, and it ends with a brace at the start of a line; a word in
# capitals is a macro, which may make a kernel of it
FUNCTION = re.compile(r"^(?![A-Z]+\b)[A-Za-z_][\w *]*?\b(\w+)\s*\([^;{}#]*\)\s*\{\n.*?^\}\n", re.M | re.S)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
WORD = re.compile(r"\w+")
PASTED = re.compile(r"(\w+)\s*##|CAT\((\w+),")  # the beginnings of names that macros put together
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
def kernel_source(file: str, name: str, named: frozenset[str] = frozenset()) -> str:
    """Return the text of `file_source` without other kernels and what only they call: it would be compiled as well.

    Lines keep their numbers. What cannot be taken out alone stays: a definition in whose text a condition of the
    preprocessor begins or ends, or a macro that others may use, and one whose name is a macro.

    Parameters
    ----------
    file, name : str
        The file, relative to the kernels folder, and the kernel in it.
    named : frozenset of str
        The `functions` of the file that macros in front of it name: these stay.
    """

    def without(found: re.Match[str]) -> str:
        if found[1] == name or found[1].isupper() or not _stands_alone(found[0]):
            return found[0]
        return "\n" * found[0].count("\n")

    return _without_unused(DEFINITION.sub(without, file_source(file)), named | {name})


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of the functions in the text of `file_source` that are not kernels."""
    return frozenset(found[1] for found in _function_definitions(file_source(file)))


def _function_definitions(text: str) -> list[re.Match[str]]:
    kernels = [found.span() for found in DEFINITION.finditer(text)]
    inside = (any(start <= found.start() < end for start, end in kernels) for found in FUNCTION.finditer(text))
    return [found for found, of_kernel in zip(FUNCTION.finditer(text), inside) if not of_kernel]


def _without_unused(text: str, named: frozenset[str]) -> str:
    """Return a source without the functions that neither it nor `named` names."""
    code = COMMENT.sub("", text)
    kept = (*named, *{first or second for first, second in PASTED.findall(code)})
    left = [found for found in _function_definitions(text) if _stands_alone(found[0]) and not found[1].startswith(kept)]
    words = {found: Counter(WORD.findall(COMMENT.sub("", found[0]))) for found in left}
    all_words = Counter(WORD.findall(code))
    removed: list[re.Match[str]] = []
    while unused := [found for found in left if all_words[found[1]] == words[found][found[1]]]:
        for found in unused:
            all_words.subtract(words[found])
            left.remove(found)
        removed += unused
    for found in sorted(removed, key=lambda found: -found.start()):
        text = text[: found.start()] + "\n" * found[0].count("\n") + text[found.end() :]
    return text


def _stands_alone(definition: str) -> bool:
    """Return whether a definition can be left out without a change of what surrounds it."""
    directives = DIRECTIVE.findall(definition)
    words = [word for word, _ in directives]
    macros = {kind: {name for word, name in directives if word == kind} for kind in ("define", "undef")}
    balanced = definition.count("{") == definition.count("}") and words.count("if") == words.count("endif")
    return balanced and macros["define"] <= macros["undef"]
