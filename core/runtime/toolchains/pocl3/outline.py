"""Kernels whose body is a function that no compiler inlines, for compilers that repeat the body.

PoCL makes three functions of a kernel: the kernel itself, one for each work-group and one for small grids. Each holds
the whole body, and all are compiled although one of them runs. With the body in a function of its own they hold a call.
"""

from __future__ import annotations

import re
from functools import cache

from clgraft.core.runtime.sources import kernel_source

KERNEL = re.compile(r"^(kernel|SINGLE)\s+void\s+(\w+)\s*\((.*?)\)\s*\{\n(.*?)^\}\n", re.M | re.S)
TENSOR = re.compile(r"(?:CONST_)?TENSOR(?:_OF)?\((?:.*,)?\s*(\w+)\s*\)")
PARAMETER = re.compile(r"[\w\s]*[\w*\s]\b(\w+)")
MORE = re.compile(r"(?: \w+_PARAMETERS)*$")  # macros of further parameters
COMMA = re.compile(r",(?![^(]*\))")  # outside of parentheses
PLACES = ("get_global_id", "get_global_size")  # what a body may ask for: it becomes a parameter
# what stays in kernels: work-groups of several items, and local memory that a body declares
BOUND = re.compile(r"\b(barrier|get_(local|group|num|work|enqueued)_\w+|get_global_(offset|linear_id)|\w+_fence)\b")
LOCAL_ARRAY = re.compile(r"^\s*(__)?local\b[^*=;]*;", re.M)


@cache
def outlined_source(file: str, name: str, named: frozenset[str] = frozenset()) -> str:
    """Return the text of `sources.kernel_source` with the kernel's body in a function that is not inlined.

    For kernels that run in work-groups of one item. Lines keep their numbers. The text stays as it is where the body
    needs more than the kernel's arguments and its place in the grid.
    """

    def split(found: re.Match[str]) -> str:
        return (_split(*found.groups()) if found[2] == name else None) or found[0]

    return KERNEL.sub(split, kernel_source(file, name, named))


def _split(word: str, name: str, parameters: str, body: str) -> str | None:
    """Return a function and the kernel that calls it; None if the kernel has to stay whole."""
    if BOUND.search(body) or LOCAL_ARRAY.search(body):
        return None
    head_lines = parameters.count("\n") + 1
    parameters = " ".join(parameters.split())
    more = MORE.search(parameters)[0]  # type: ignore[index]
    passed_more = more.replace(" ", " PASS_")
    taken, passed, opened = [], [], []
    for part in COMMA.split(parameters[: len(parameters) - len(more)]):
        text = part.strip()
        tensor, plain = TENSOR.fullmatch(text), PARAMETER.fullmatch(text)
        if tensor:
            taken.append(text)
            passed.append(f"{tensor[1]}_base, {tensor[1]}_offset")
        elif plain and text.startswith("local "):  # PoCL inlines every function that takes a pointer to local memory
            taken.append(f"const ulong {plain[1]}_address")
            passed.append(f"(ulong){plain[1]}")
            opened.append(f"{text} = ({text[: plain.start(1)]}){plain[1]}_address;")
        elif plain:
            taken.append(text)
            passed.append(plain[1])
        else:
            return None
    for place in PLACES:
        body = re.sub(rf"\b{place}\((\d)\)", rf"{place}_\1", body)
        if re.search(rf"\b{place}\b", body):
            return None
        taken += [f"const size_t {place}_{axis}" for axis in range(3)]
        passed += [f"{place}({axis})" for axis in range(3)]
    head = f"__attribute__((noinline)) void {name}_body({', '.join(taken)}{more}) {{ {' '.join(opened)}"
    call = f"{name}_body({', '.join(passed)}{passed_more});"
    return head + "\n" * head_lines + body + f"}} {word} void {name}({parameters}) {{ {call} }}\n"
