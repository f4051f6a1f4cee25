"""Joins conversions of single arrays: casts of parameters to 16 bits, of gradients back, and transpositions of both.

A training step in 16 bits has some for each layer, and a launch takes longer than the few bytes that it moves. A cast
and the transposition after or before it become one problem; then conversions between the same types become problems of
several arrays (`CastsProblem`), each where all that it reads is there and nothing has read its results yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clgraft.core.graph.structure import Node, Some, Structure
from clgraft.core.operators.cast import CastProblem, CastsProblem
from clgraft.core.operators.cast.together import MOST_ARRAYS, TYPES
from clgraft.core.operators.copying import TransposeProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import Problem

MOST_ELEMENTS = 2**22  # of an array: with more, a launch is short compared with what it moves
MOST_TOGETHER = 2**24  # elements of the arrays of a problem, which are in memory at the same time


def join_casts(graph: Some) -> Some:
    """Return the graph with conversions joined; what is computed stays the same to the bit."""
    graph = _in_pairs(graph)
    kinds = dict.fromkeys((c.source, c.target) for c in _conversions(graph))
    for source, target in kinds:
        graph = _joined(graph, source, target)
    return graph


def conversion(problem: Problem) -> CastsProblem | None:
    """Return a problem that only converts one array as a `CastsProblem`; None for any other one."""
    if isinstance(problem, CastsProblem):
        return problem if len(problem.outer) == 1 else None
    if isinstance(problem, CastProblem):
        return _cast(problem.source, problem.target, problem.count)
    if isinstance(problem, TransposeProblem):
        return _transposition(problem)
    if isinstance(problem, PointwiseProblem) and problem.expression.rstrip("; ") == "y0 = x0":
        whole = problem.reductions == (None,) and not problem.alpha and not problem.beta and len(problem.inputs) == 1
        x, y, *_ = problem.arguments()
        return _cast(x.dtype, y.dtype, x.size) if whole else None
    return None


def _cast(source: str, target: str, count: int) -> CastsProblem | None:
    """Return a cast between two types of real numbers that differ."""
    if source == target or not {source, target} <= set(TYPES):
        return None
    return CastsProblem(source, target, (1,), (1,), (count,))


def _transposition(problem: TransposeProblem) -> CastsProblem | None:
    """Return a transposition of the last two axes."""
    rank = len(problem.shape)
    if problem.dtype not in TYPES or rank not in (2, 3) or problem.axes != (*range(rank - 2), rank - 1, rank - 2):
        return None
    outer, rows, columns = (1,) * (3 - rank) + problem.shape
    return CastsProblem(problem.dtype, problem.dtype, (outer,), (rows,), (columns,))


@dataclass(frozen=True)
class _Conversion:
    """A conversion: its node's number, and between which nodes it may run, after `ready` and before `due`."""

    number: int
    problem: CastsProblem
    read: str
    written: str
    ready: int
    due: int

    @property
    def source(self) -> str:
        return self.problem.source

    @property
    def target(self) -> str:
        return self.problem.target

    @property
    def size(self) -> int:
        return self.problem.arguments()[0].size


def _conversions(graph: Structure) -> Iterator[_Conversion]:
    """Yield the conversions of arrays that are not large."""
    changes = [(i, set(node.changes)) for i, node in enumerate(graph.nodes) if node.changes]
    for i, node in enumerate(graph.nodes):
        problem = conversion(node.problem)
        if problem is None or not 0 < problem.arguments()[0].size <= MOST_ELEMENTS or not node.writes:
            continue
        (read,), (written,) = node.reads, node.writes
        changed = [j for j, states in changes if read in states]
        ready = max((j for j in (graph.writers.get(read, -1), *changed) if j < i), default=-1)
        due = min((*graph.readers[written], *(j for j in changed if j > i)), default=len(graph.nodes))
        yield _Conversion(i, problem, read, written, ready, due)


def _in_pairs(graph: Some) -> Some:
    """Return the graph with casts and transpositions joined where nothing else reads what is between them."""
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    found = {c.written: c for c in _conversions(graph)}
    for second in list(found.values()):
        first = found.get(second.read)
        if first is None or second.read in graph.outputs or len(graph.readers[second.read]) != 1:
            continue
        if first.number not in nodes or second.number not in nodes or first.due < second.number:
            continue
        both = _both(first.problem, second.problem)
        if both is not None and nodes[first.number] is graph.nodes[first.number]:
            nodes[second.number] = Node(both, (first.read, second.written))
            del nodes[first.number]
            del found[second.written]  # a third one would read what is not there
    return graph if len(nodes) == len(graph.nodes) else graph.with_nodes(nodes.values())


def _both(first: CastsProblem, second: CastsProblem) -> CastsProblem | None:
    """Return a cast and a transposition as one problem; None for two of the same kind."""
    for cast, other in ((first, second), (second, first)):
        if cast.outer == cast.rows == (1,) and other.source == other.target and other.rows != (1,):
            return CastsProblem(first.source, second.target, other.outer, other.rows, other.columns)
    return None


def _joined(graph: Some, source: str, target: str) -> Some:
    """Return the graph with conversions between two types joined."""
    found = [c for c in _conversions(graph) if (c.source, c.target) == (source, target)]
    results = {c.written for c in found}
    left = sorted((c for c in found if c.read not in results), key=lambda c: (c.due, c.ready))
    placed: dict[int, list[Node]] = {}
    gone: set[int] = set()
    while left:
        members = _together(left)
        left = [c for c in left if c not in members]
        if len(members) > 1:
            gone.update(c.number for c in members)
            placed.setdefault(1 + max(c.ready for c in members), []).append(_node(members))
    if not gone:
        return graph
    nodes: list[Node] = []
    for i in range(len(graph.nodes) + 1):
        nodes += placed.get(i, ())
        if i < len(graph.nodes) and i not in gone:
            nodes.append(graph.nodes[i])
    return graph.with_nodes(nodes)


def _together(left: list[_Conversion]) -> list[_Conversion]:
    """Return those that can run with the first one, which is due first, as many as a problem may have."""
    members: list[_Conversion] = []
    total = 0
    for c in left:
        if c.ready < left[0].due and total + c.size <= MOST_TOGETHER and len(members) < MOST_ARRAYS:
            members.append(c)
            total += c.size
    return members


def _node(members: list[_Conversion]) -> Node:
    problems = [c.problem for c in members]
    outer, rows, columns = (tuple(getattr(p, name)[0] for p in problems) for name in ("outer", "rows", "columns"))
    problem = CastsProblem(members[0].source, members[0].target, outer, rows, columns)
    return Node(problem, (*(c.read for c in members), *(c.written for c in members)))
