"""Programs of several kernels, each as a function, for `kernels/common/joined.cl`, which runs them in one launch.

Each kernel was planned as a program of its own, with macros of its own. In one program the names that it defines
outside of functions get a prefix, by macros in front of it, and all its macros end with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from clgraft.core.runtime.outline import BOUND, COMMA, LOCAL_ARRAY, PLACES, TENSOR
from clgraft.core.runtime.sources import COMMENT

DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(?:[^\n]*\\\n)*[^\n]*\n", re.M)
CONDITIONS = {"if": "#if", "ifdef": "#if", "ifndef": "#if", "else": "#else", "elif": "#else", "endif": "#endif"}
DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[ \t]+(\d+)[ \t]*$)?", re.M)
ENUM = re.compile(r"^enum\s*\{([^{}]*)\};", re.M)
NUMBERED = re.compile(r"(?:^|,)\s*(\w+)")
TOKEN = re.compile(r"#?\w+|[{}()\[\];=,]")
KERNEL_OF = r"\b(?:kernel|SINGLE)\b[^;{{]*\bvoid\s+{}\s*\("
# a kernel that stayed whole, with its parameters and its body
WHOLE = (
    r"^(?:kernel __attribute__\(\(reqd_work_group_size\(1, 1, 1\)\)\)|SINGLE)\s+"
    r"void\s+{}\(([^{{}}]*?)\)\s*\{{\n(.*?)^\}}\n"
)
LOCAL = re.compile(r"\blocal\b")
# what kernels ask for becomes a parameter, also in macros; what only work-groups of several items need is an error
ASKED = {
    **{f"{place}(axis)": f"{place}_##axis" for place in PLACES},
    "get_group_id(axis)": "get_global_id_##axis",
    "get_num_groups(axis)": "get_global_size_##axis",
    "get_local_id(axis)": "0",
    "get_local_size(axis)": "1",
    "barrier(fence)": "no_barrier_in_joined_launches",
}
SHARED = {"stored", "real"}  # the same in all parts of a program; macros put names together with them
AGAIN = '#pragma clang diagnostic ignored "-Wtypedef-redefinition"\n'
MAD = "-cl-mad-enable"
VALUES = tuple(f"{place}_{axis}" for place in PLACES for axis in range(3))


@dataclass(frozen=True)
class Part:
    """A kernel's program as a part of another one.

    Attributes
    ----------
    text : str
        The program without its kernel.
    function : str
        What the kernel did.
    types : tuple of str or None
        Of the function's parameters in front of the place in the grid; a tensor is one, of no type. None: all are in
        front of it, and are no structs.
    names : frozenset of str
        That are defined outside of functions.
    macros : frozenset of str
        That are defined anywhere.
    """

    text: str
    function: str
    types: tuple[str, ...] | None
    names: frozenset[str]
    macros: frozenset[str]

    def beginning(self, number: int) -> str:
        """Return the program as number `number` of several, up to where its macros are still defined."""
        macros = {**ASKED, **{name: f"j{number}_{name}" for name in sorted(self.names)}}
        return "".join(f"#define {name} {text}\n" for name, text in macros.items()) + self.text + "\n"

    def end(self) -> str:
        """Return what ends all macros of the program."""
        asked = {name.partition("(")[0] for name in ASKED}
        return "".join(f"#undef {name}\n" for name in sorted(self.names | self.macros | asked))


def contract(across: bool) -> str:
    """Return a line after which products and sums of different statements may, or may not, be rounded as one."""
    return f"#pragma clang fp contract({'fast' if across else 'on'})\n"


def joinable(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether kernels with these options can be in one program."""
    return set(first) ^ set(second) <= {MAD}


def joined_source(parts: Sequence[tuple[Part, str, str]], runner: str, storage: int) -> str:
    """Return the text of a program of several kernels: each is a case of the `runner`.

    Parameters
    ----------
    parts : sequence of (Part, str, str)
        With a pragma, and the arguments of each function, which may read `row`, `memory`, `room` and `tickets`.
    runner : str
        The text of `kernels/common/joined.cl` with the prelude.
    storage : int
        The prelude's STORAGE of all of them.
    """
    pieces, cases = [], []
    for number, (one, pragma, arguments) in enumerate(parts):
        cases.append(f"case {number}: j{number}_call(row, memory, room, tickets, {', '.join(VALUES)}); break;")
        places = ", ".join(f"const size_t {value}" for value in VALUES)
        pieces += [
            pragma,
            one.beginning(number),
            f"void j{number}_call(const global long *row, global char *const *memory, const ulong room, "
            f"volatile global int *tickets, {places}) {{ {one.function}({arguments}); }}\n",
            one.end(),
        ]
    return AGAIN + "".join(pieces) + f"#define STORAGE {storage}\n#define CASES {' '.join(cases)}\n{runner}"


@cache
def part(text: str, kernel: str) -> Part | None:
    """Return a program as a part of others; None if it has to stay alone.

    Parameters
    ----------
    text : str
        The program; its kernel's body is a function (see `outline.outlined_source`).
    kernel : str
    """
    function = f"{kernel}_body"
    head = re.search(rf"^__attribute__\(\(noinline\)\) void {function}\((.*?), const size_t {VALUES[0]}", text, re.M)
    call = re.search(rf"^}} (?:kernel|SINGLE) void {kernel}\(.*\n", text, re.M)
    whole = re.search(WHOLE.format(kernel), text, re.M | re.S)
    types: tuple[str, ...] | None = None
    if head and call:
        types = tuple("" if TENSOR.fullmatch(p.strip()) else p.strip().rpartition(" ")[0] for p in COMMA.split(head[1]))
        text = text[: call.start()] + "}\n" + text[call.end() :]
    elif whole and not BOUND.search(whole[2]) and not LOCAL_ARRAY.search(whole[2]) and not LOCAL.search(whole[1]):
        places = ", ".join(f"const size_t {value}" for value in VALUES)
        made = f"__attribute__((noinline)) void {function}({whole[1]}, {places}) {{\n{whole[2]}}}\n"
        text = text[: whole.start()] + made + text[whole.end() :]
    else:
        return None
    code = COMMENT.sub("", text)
    plain = DIRECTIVE.sub(lambda found: CONDITIONS.get(found[1], "") + "\n", code)
    names = _names(ENUM.sub("", plain), {name: value for name, value in DEFINED.findall(code) if value})
    if names is None or re.search(KERNEL_OF.format(kernel), plain):
        return None
    names |= {name for found in ENUM.finditer(plain) for name in NUMBERED.findall(found[1])}
    return Part(text, function, types, names - SHARED, frozenset(name for name, _ in DEFINED.findall(code)))


def _names(code: str, numbers: dict[str, str]) -> frozenset[str] | None:
    """Return the names that code, with no directives but `CONDITIONS`, defines outside of functions.

    None: some are not clear.
    """
    names: set[str] = set()
    item: list[str] = []  # words outside of braces, with what is in parentheses as one word
    braces = parentheses = 0
    branches: list[int] = []  # the depth at which each condition began
    for token in TOKEN.findall(code):
        if token == "#if":
            branches.append(braces)
        elif token == "#else":
            braces = branches[-1]
        elif token == "#endif":
            branches.pop()
        if token[0] == "#":
            continue
        if token == "}":
            braces -= 1
            if braces < 0:
                return None
            if braces == 0 and item and item[0] not in ("typedef", "struct") and "=" not in item:
                token = ";"
        if token == "{":
            braces += 1
        if braces or token in "{}":
            continue
        if token == ")":
            parentheses -= 1
        if parentheses:
            item[-1] += token
        elif token == "(":
            item.append(token)
        elif token == ";":
            if item:
                name = _name(item, numbers)
                if name is None:
                    return None
                names.add(name)
            item = []
        elif token != ")":
            item.append(token)
        if token == "(":
            parentheses += 1
    return frozenset(names) if not braces and not parentheses and not item else None


def _name(item: list[str], numbers: dict[str, str]) -> str | None:
    """Return the name that an item outside of functions defines."""
    words = list(item)
    while "__attribute__" in words:
        at = words.index("__attribute__")
        del words[at : at + 2]
    if words[0] == "typedef" or "=" in words:
        for sign in "=[":
            words = words[: words.index(sign)] if sign in words else words
        return (
            words[-1] if words[-1].isidentifier() and (words[:2] != ["typedef", "struct"] or len(words) == 3) else None
        )
    at = next((i for i, word in enumerate(words) if word.startswith("(")), 0)
    if at < 2:
        return None  # a macro that defines something
    if words[at - 1] == "CAT":
        first, _, second = words[at][1:].partition(",")
        return first + numbers[second] if first.isidentifier() and second in numbers else None
    return words[at - 1]
