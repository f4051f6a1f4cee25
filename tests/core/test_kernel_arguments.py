"""What describes a grid, a window or a box travels to kernels as one struct, not as a row of numbers."""

from __future__ import annotations

import re

import pytest

from clgraft.core.runtime import sources

MOST_NUMBERS = 10  # that a kernel takes by position
# measured with structs on PoCL: 0.63 to 0.96 times as fast
FASTER_WITH_NUMBERS = {
    *("pooling/planes.cl", "pooling/planes_max_gradient.cl", "pooling/channels_last.cl"),
    "pooling/sliding.cl",
}
HERE = sources.KERNELS
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?![\w(])((?:[^\n\\]|\\\n|\\)*)", re.M)
HEAD = re.compile(r"\b(?:kernel|SINGLE)\b[^;{}#]*?\bvoid\s+(\w+)\s*\(")
NUMBER = re.compile(r"(?:const\s+)?(?:int|uint|long|ulong|float|real)\s+\w+")
COMMENT = re.compile(r"//[^\n]*")


def parameters(text: str) -> dict[str, list[str]]:
    """Return the parameters of a file's kernels, those that macros hold included."""
    text = COMMENT.sub("", text)
    macros: dict[str, str] = {}
    for name, body in MACRO.findall(text):
        macros.setdefault(name, body.replace("\\\n", " ").strip())
    found = {}
    for head in HEAD.finditer(text):
        end, depth = head.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        inside = text[head.end() : end - 1]
        for _ in range(4):
            inside = re.sub(r"\b[A-Z][A-Z_0-9]+\b", lambda word: macros.get(word[0], word[0]), inside)
        found[head[1]] = [word.strip() for word in re.split(r",(?![^()]*\))", inside)]
    return found


def numbers(words: list[str]) -> list[str]:
    return [word for word in words if NUMBER.fullmatch(word)]


def test_numbers_inside_of_macros_are_counted():
    text = "#define SHAPE const int h, \\\n  const int w\nSINGLE void f(TENSOR_OF(int, x), SHAPE, const Grid grid) {}"
    assert parameters(text) == {"f": ["TENSOR_OF(int, x)", "const int h", "const int w", "const Grid grid"]}
    assert len(numbers(parameters(text)["f"])) == 2


FILES = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*.cl")}


@pytest.mark.parametrize("file", sorted(FILES - FASTER_WITH_NUMBERS))
def test_kernels_take_few_numbers_by_position(file):
    text = sources.file_source(file)
    many = {name: numbers(words) for name, words in parameters(text).items() if len(numbers(words)) > MOST_NUMBERS}
    assert not many
