"""C, C++ and OpenCL sources: which C file uses which, read from includes and calls; and lines that fit the screen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# folder -> headers without a file of their own, which all files may include: what callers and Python see
INTERFACES = {
    "core/abi": {"clgraft", "opencl", "planner"},
    "mxnet_ops/engine/calls": {"calls", "clgraft", "questions", "rules"},
    "caffe_layers/native/src": {"caffe_names", "caffe_types", "clgraft", "clgraft_caffe"},
}
GENERATED = {"types"}  # types.inc of caffe_layers/library/build.py
KINDS = (".c", ".h", ".cpp", ".hpp")


def code(text: str) -> str:
    """Return C without comments and without what stands between quotation marks, other than names of headers."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return re.sub(r"^(?!\s*#\s*include)(.*)$", lambda m: re.sub(r'"(\\.|[^"\\])*"', '""', m[1]), text, flags=re.M)


def defined(text: str) -> set[str]:
    """Return the functions that a C file defines for other files."""
    found = re.finditer(r"^(?!static\b|typedef\b)\w[\w *]*[ *](\w+)\([^;{}]*\)\s*\{", code(text), re.M)
    return {match[1] for match in found}


def uses(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, for each file without its ending, the files that it includes or calls."""
    found: dict[str, set[str]] = {name.partition(".")[0]: set() for name in files}
    owner = {each: name[:-2] for name, text in files.items() if name.endswith(".c") for each in defined(text)}
    for name, text in files.items():
        stem = name.partition(".")[0]
        plain = code(text)
        found[stem] |= {Path(each).stem for each in re.findall(r'^\s*#\s*include\s+"([^"/]+)"', plain, re.M)}
        if name.endswith(".c"):
            found[stem] |= {owner[word] for word in set(re.findall(r"\w+", plain)) if word in owner}
        found[stem].discard(stem)
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return files that use each other in a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def sources(folder: str) -> dict[str, str]:
    """Return the C and C++ files of a folder by their names; not those that a build made."""
    paths = sorted(path for path in (ROOT / folder).iterdir() if path.suffix in KINDS and path.name[0] != "_")
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("folder", INTERFACES)
def test_files_stand_on_files_below_them(folder):
    graph = uses(sources(folder))
    assert not circle(graph), " uses ".join(circle(graph))
    unknown = {target for targets in graph.values() for target in targets} - set(graph) - INTERFACES[folder] - GENERATED
    assert not unknown


@pytest.mark.parametrize("folder", ["core/abi", "mxnet_ops/engine/calls"])
def test_a_function_is_declared_by_the_header_of_its_file(folder):
    """A function that another file calls is in X.h if X.c defines it, or in an interface."""
    files = sources(folder)
    words = {name: set(re.findall(r"\w+", code(text))) for name, text in files.items()}
    interfaces = set().union(*(words[f"{name}.h"] for name in INTERFACES[folder] if f"{name}.h" in words))
    wrong = []
    for name, text in files.items():
        called = set().union(*(words[other] for other in words if other.endswith(".c") and other != name))
        for function in defined(text) & called if name.endswith(".c") else ():
            if function not in words.get(name[:-2] + ".h", set()) | interfaces:
                wrong.append(f"{name}: {function}")
    assert not wrong


def test_circles_are_noticed():
    """A header that includes a higher one, and a call upwards through a declaration that is no header's."""
    assert circle(uses({"a.h": '#include "b.h"', "b.c": '#include "b.h"\n#include "a.h"', "b.h": "int b(void);"}))
    upwards = {
        "low.c": "/* high() */\nint high(int x);\nint low(int x) {\n    return high(x);\n}\n",
        "high.c": '#include "low.h"\nint high(int x) {\n    return x ? 1 : low(x);\n}\n',
        "low.h": "int low(int x);",
    }
    assert circle(uses(upwards))
    upwards["low.c"] = upwards["low.c"].replace("return high(x)", 'return *"high"').replace("int high(int x);\n", "")
    assert not circle(uses(upwards))


def test_lines_fit_the_screen():
    """No line of C, C++ or OpenCL C is longer than 120 characters, where clang-format is used."""
    ignored = [line for line in (ROOT / ".clang-format-ignore").read_text().splitlines() if line[:1] not in ("", "#")]
    folders = ("core", "kernels", "mxnet_ops", "caffe_layers", "plugins", "examples", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (*KINDS, ".cl")]
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        if path.name[0] != "_" and not any(fnmatch(str(path.relative_to(ROOT)), pattern) for pattern in ignored)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert len(paths) > 100
    assert not long
