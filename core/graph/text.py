"""The text of graphs: a line for what they take and give, and one line for each problem.

    input x[8,3,32,32] w[16,3,3,3]
    v1 = x w | conv forward n8 ic3 ih32 iw32 oc16 kh3 kw3 ph1 pw1
    v2 v3 v4 = v1 gamma beta {eps=1e-05} | batchnorm forward_training n8 c16 s1024
    output v2

Left of ``=`` stand the values that the problem writes, right of it those that it reads, both in the order of its
arguments; ``_`` is an output that nobody wants. A state stands on both sides. ``{eps=1e-05}`` gives the scalars, as
numbers or as names of the graph's scalars. Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import re
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.graph.structure import SKIPPED, Node, Number, Structure, Value
from clgraft.core.problem import DTYPE_WORDS, parse, reads_as_number, shortened
from clgraft.core.problem.base import UNREADABLE

VALUE_WORDS = {**DTYPE_WORDS, "i32": "int32", "u8": "uint8"}
WORD_OF_VALUE = {dtype: word for word, dtype in VALUE_WORDS.items()}
VALUE = re.compile(r"([A-Za-z_][\w.]*)(?::([a-z]+\d+))?\[([\d,]*)\]")


def _listed(value: Value) -> str:
    dtype = "" if value.dtype == "float32" else f":{WORD_OF_VALUE[value.dtype]}"
    return f"{value.name}{dtype}[{','.join(map(str, value.shape))}]"


def _number(value: Number) -> str:
    return value if isinstance(value, str) else repr(float(value))


def write_graph(graph: Structure) -> str:
    """Return the text of a graph, which `read_graph` reads."""
    lines = []
    for word, values in (("input", graph.inputs), ("state", graph.states)):
        if values:
            lines.append(" ".join([word, *map(_listed, values)]))
    if graph.scalars:
        lines.append(" ".join(["scalar", *graph.scalars]))
    for node in graph.nodes:
        pairs = list(zip(node.problem.arguments(), node.arguments))
        written = [name for argument, name in pairs if argument.role != "in"]
        read = [name for argument, name in pairs if argument.role != "out"]
        names = node.problem.scalars()
        numbers = ", ".join(f"{name}={_number(value)}" for name, value in zip(names, node.scalars))
        words = [*written, "=", *read, *([f"{{{numbers}}}"] if names else []), "|", str(node.problem)]
        lines.append(" ".join(words))
    lines.append(" ".join(["output", *graph.outputs]))
    return "\n".join(lines) + "\n"


def read_graph(text: str) -> dict[str, Any]:
    """Return the parts of the graph of a text, by the names of `Graph`'s parameters.

    Raises
    ------
    ProblemError
        Naming the line that cannot be read, or what does not fit together.
    """
    inputs: list[Value] = []
    states: list[Value] = []
    scalars: list[str] = []
    outputs: list[str] = []
    nodes: list[Node] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            word, *others = line.split(None, 1)
            rest = "".join(others)
            if word == "input":
                inputs += _values(rest)
            elif word == "state":
                states += _values(rest)
            elif word == "scalar":
                scalars += rest.split()
            elif word == "output":
                outputs += rest.split()
            else:
                nodes.append(_node(line))
        except UNREADABLE as error:  # among them every ProblemError, and whole numbers of thousands of digits
            raise ProblemError(f"[graph] line {number}: {error}") from None
    return {"nodes": nodes, "inputs": inputs, "outputs": outputs, "states": states, "scalars": scalars}


def _values(text: str) -> list[Value]:
    values = []
    for word in text.split():
        found = VALUE.fullmatch(word)
        if not found or (found[2] or "f32") not in VALUE_WORDS:
            raise ProblemError(f"got {shortened(word)}, expected a value such as x[8,3,32,32] or x:f16[8]")
        shape = tuple(int(size) for size in found[3].split(",") if size)
        values.append(Value(found[1], shape, VALUE_WORDS[found[2] or "f32"]))
    return values


def _node(line: str) -> Node:
    values, _, problem_text = line.partition("|")
    left, equals, right = values.partition("=")
    names_read, brace, numbers = right.partition("{")
    numbers, closing, after = numbers.partition("}")
    if not (equals and problem_text) or bool(brace) != bool(closing) or after.strip():
        raise ProblemError(f"got {shortened(line)}, expected 'written = read {{scalar=1}} | problem'")
    problem = parse(problem_text)
    written, read = left.split(), names_read.split()
    arguments = problem.arguments()
    counts = tuple(sum(argument.role != role for argument in arguments) for role in ("in", "out"))
    if (len(written), len(read)) != counts:
        raise ProblemError(
            f"got {len(written)} values written and {len(read)} read, expected {counts[0]} and {counts[1]}"
        )
    names, writes, reads = [], iter(written), iter(read)
    for argument in arguments:
        name = next(writes) if argument.role != "in" else ""
        other = next(reads) if argument.role != "out" else ""
        if argument.role == "inout" and name != other:
            raise ProblemError(f"got {name!r} and {other!r} for {argument.name}, expected the same state on both sides")
        if other == SKIPPED:
            raise ProblemError(f"got {SKIPPED} for {argument.name}, expected a value: it is read")
        names.append(name or other)
    return Node(problem, tuple(names), _scalars(problem.scalars(), numbers))


def _scalars(names: tuple[str, ...], text: str) -> tuple[Number, ...]:
    given: dict[str, Number] = {}
    for word in text.split(","):
        if word.strip():
            name, _, value = (part.strip() for part in word.partition("="))
            if name in given:
                raise ProblemError(f"got scalar {name!r} a second time, expected it once")
            given[name] = float(value) if reads_as_number(value) else value
    if set(given) != set(names):
        raise ProblemError(f"got scalars {sorted(given)}, expected {list(names)}")
    return tuple(given[name] for name in names)
