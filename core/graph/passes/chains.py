"""Joins pointwise problems: a value that only the next one reads never leaves the registers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set

from clgraft.core.graph.structure import Node, Number, Some, Structure
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import CONSTANTS, FUNCTIONS, TESTS, TYPES
from clgraft.core.problem import SMALL

WORD = re.compile(r"(?<![\w.])([A-Za-z_]\w*)")
INPUT = re.compile(r"x\d+")
MOST_ARGUMENTS = 24  # arrays of a joined problem: each takes two kernel arguments, and drivers hold some tens
MOST_CHARACTERS = 4000  # the length of a joined expression at most
KNOWN = {*CONSTANTS, *FUNCTIONS, *TESTS, *TYPES, "const"}


def join_chains(graph: Some) -> Some:
    """Return the graph with pointwise problems joined to the ones that alone read their results."""
    nodes = dict(enumerate(graph.nodes))
    readers = {name: set(numbers) for name, numbers in graph.readers.items()}
    changing = [(i, node.changes) for i, node in enumerate(graph.nodes) if node.changes]
    for i in range(len(graph.nodes)):
        while _join_one(graph, nodes, readers, changing, i):
            pass
    return graph if len(nodes) == len(graph.nodes) else graph.with_nodes(nodes.values())


def _join_one(
    graph: Structure,
    nodes: dict[int, Node],
    readers: Mapping[str, set[int]],
    changing: Sequence[tuple[int, Sequence[str]]],
    i: int,
) -> bool:
    """Join a node to the first one whose result it alone reads, in place, and return whether there was one.

    A join changes nothing for the nodes in front of it: no pair of them becomes possible.
    """
    for name in dict.fromkeys(nodes[i].reads):
        writer = graph.writers.get(name, -1)
        if writer not in nodes or readers[name] != {i} or name in graph.outputs:
            continue
        first = nodes[writer]
        changes = {state for k, states in changing if writer <= k < i for state in states}
        joined = _joined(first, nodes[i], changes)
        if joined is not None:
            for read in first.reads:
                readers[read].discard(writer)
                readers[read].add(i)
            nodes[i] = joined
            del nodes[writer]
            return True
    return False


def _plain(node: Node) -> bool:
    """Return whether a node is a pointwise problem of one result without reductions and blends."""
    problem = node.problem
    return isinstance(problem, PointwiseProblem) and not problem.alpha and not problem.beta


def _joined(first: Node, second: Node, changes: Set[str]) -> Node | None:
    """Return two nodes as one, in place of the second; None if they cannot be one.

    Nodes between the two may make changes to states: one that the first node reads keeps them apart.
    """
    if not (_plain(first) and _plain(second)):
        return None
    one, two = first.problem, second.problem
    dtype = _dtype(one, two)
    if dtype is None:
        return None
    if any(reduction is not None for reduction in one.reductions) or one.assignments.outputs != 1:
        return None
    value = first.writes[0]
    if not changes.isdisjoint(first.reads):
        return None
    shapes = _shapes(one, two, [i for i, name in enumerate(second.reads) if name == value])
    if shapes is None:
        return None
    texts: list[str] = []
    names: list[str] = []
    inputs: list[tuple[int, ...]] = []
    types: list[str] = []
    scalars: dict[str, Number] = {}
    places: dict[tuple[str, tuple[int, ...]], int] = {}
    for number, (node, own) in enumerate(zip((first, second), shapes)):
        meaning: dict[str, str] = {}
        for i, (name, shape) in enumerate(zip(node.reads, own)):
            if number == 1 and name == value:
                meaning[f"x{i}"] = "joined"
                continue
            if (name, shape) not in places:
                places[name, shape] = len(inputs)
                inputs.append(shape)
                types.append(node.problem.type_of(f"x{i}"))
                names.append(name)
            meaning[f"x{i}"] = f"x{places[name, shape]}"
        for name, given in zip(node.problem.scalars(), node.scalars):
            fresh = f"s{len(scalars)}"
            meaning[name] = fresh
            scalars[fresh] = given
        texts.append(_renamed(node.problem.expression, meaning, number))
    text = " ".join(texts)
    if len(inputs) + two.assignments.outputs > MOST_ARGUMENTS or len(text) > MOST_CHARACTERS:
        return None
    reductions = two.reductions if shapes[1] == list(two.inputs) else ()
    wide = [f"x{i}" for i, own in enumerate(types) if own != dtype]
    wide += [f"y{i}" for i in range(two.assignments.outputs) if two.type_of(f"y{i}") != dtype]
    alone = len(wide) == len(inputs) + two.assignments.outputs
    problem = PointwiseProblem(
        tuple(inputs),
        text,
        reductions,
        tuple(scalars),
        dtype="float32" if alone else dtype,
        float32_arguments=() if alone else tuple(wide),
    )
    return Node(problem, (*names, *second.arguments[len(two.inputs) :]), tuple(scalars.values()))


def _dtype(one: PointwiseProblem, two: PointwiseProblem) -> str | None:
    """Return the dtype of two problems as one, whose arguments may also be float32; None if there is none."""
    found = {one.dtype, two.dtype}
    small = found & set(SMALL)
    if len(found) == 2 and len(small) == 1 and "float32" in found:
        return small.pop()
    return one.dtype if len(found) == 1 else None


def _shapes(one: PointwiseProblem, two: PointwiseProblem, places: list[int]) -> list[list[tuple[int, ...]]] | None:
    """Return the shapes of both problems' inputs over one common shape; None if there is none."""
    common = two.common_shape
    if any(math.prod(two.inputs[i]) != math.prod(common) for i in places):
        return None  # the value is broadcast: it would be computed many times
    if one.common_shape == common and all(two.inputs[i] == common for i in places):
        return [list(one.inputs), list(two.inputs)]
    whole = math.prod(common)
    folded = any(reduction is not None for reduction in two.reductions)
    if not folded and all(math.prod(shape) == whole for shape in (*one.inputs, *two.inputs)):
        return [[common] * len(one.inputs), [common] * len(two.inputs)]  # the output keeps its shape
    return None


def _renamed(text: str, meaning: dict[str, str], number: int) -> str:
    """Return an expression with other names for inputs and scalars, and local names of its own.

    The first problem's output becomes the local value ``joined``.
    """
    declared = False

    def word(found: re.Match[str]) -> str:
        name = found[1]
        if name in meaning:
            return meaning[name]
        if name in KNOWN:
            return name
        if re.fullmatch(r"y\d+", name):
            return "joined" if number == 0 else name
        return f"{'ab'[number]}_{name}"

    statements = []
    for statement in filter(None, (part.strip() for part in text.split(";"))):
        renamed = WORD.sub(word, statement)
        if number == 0 and re.match(r"joined\s*=", renamed) and not declared:
            renamed, declared = f"real {renamed}", True
        statements.append(f"{renamed};")
    return " ".join(statements)
