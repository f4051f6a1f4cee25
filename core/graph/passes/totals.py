"""Joins sums over single arrays whose results are added up, such as what tells whether any gradient is infinite."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from clgraft.core.graph.structure import Node, Some, Structure
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.totals import TotalsProblem
from clgraft.core.operators.totals.problem import MOST_ARRAYS, sums_vector
from clgraft.core.problem import Problem


def join_totals(graph: Some) -> Some:
    """Return the graph in which sums of alike sums are one problem; what is computed stays but for roundings.

    So are sums of these: all gradients of a training step are looked at by one problem.
    """
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    for number in range(len(graph.nodes)):
        places = _places(graph, number)
        joined = None if places is None else _joined(graph, number, places, [nodes.get(place) for place in places])
        if places is not None and joined is not None:
            nodes[number] = joined
            for place in places:
                del nodes[place]
    return graph if len(nodes) == len(graph.nodes) else graph.with_nodes(node for _, node in sorted(nodes.items()))


def _places(graph: Structure, number: int) -> list[int] | None:
    """Return the numbers of the nodes whose results a node adds up, if it does that and nobody else reads them."""
    node = graph.nodes[number]
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or set(problem.inputs) != {(1,)} or len(problem.inputs) < 2:
        return None
    count = len(problem.inputs)
    if not problem.computes(PointwiseProblem.sum_of((1,), count, problem.dtype).expression):
        return None
    places = [graph.writers.get(name, -1) for name in node.reads]
    alone = all(list(graph.readers[name]) == [number] for name in node.reads)
    inside = len(set(places)) == count and -1 not in places and set(graph.outputs).isdisjoint(node.reads)
    return places if inside and alone else None


def _joined(graph: Structure, number: int, places: list[int], members: list[Node | None]) -> Node | None:
    """Return the sum over the arrays of all members as one problem, if they are alike."""
    node = graph.nodes[number]
    dtype, steps, arrays, alike = node.problem.dtype, [], [], set()
    for member in members:
        step = None if member is None else _step(member.problem)
        if member is None or step is None or step.type_of("y0") != dtype:
            return None
        alike.add((step.expression, step.parameters, member.scalars))
        steps.append(step)
        read = [argument for argument in member.problem.arguments() if argument.role == "in"]
        arrays += [(name, argument.size, argument.dtype) for name, argument in zip(member.reads, read)]
    small = {kind for *_, kind in arrays} - {dtype}
    fits = len(alike) == 1 and len(small) <= 1 and len(arrays) <= MOST_ARRAYS
    if not fits or _change(graph, {name for name, *_ in arrays}, places, number):
        return None
    base = max(steps, key=lambda step: step.dtype in small)
    wide = tuple(a for a, (*_, kind) in enumerate(arrays) if kind not in small) if small else ()
    sizes = tuple(size for _, size, _ in arrays)
    total = TotalsProblem(replace(base, inputs=(sizes[:1],)), sizes, wide)
    scalars = next(member.scalars for member in members if member is not None)
    return Node(total, (*(name for name, *_ in arrays), *node.writes), scalars)


def _step(problem: Problem) -> PointwiseProblem | None:
    """Return the sum of an expression that a problem is, of one vector or of several ones; None if it is another."""
    if isinstance(problem, TotalsProblem):
        return problem.step
    return problem if isinstance(problem, PointwiseProblem) and sums_vector(problem) else None


def _change(graph: Structure, read: Set[str], places: list[int], number: int) -> bool:
    """Return whether anything up to a node changes what those before it read."""
    return any(read & set(node.changes) for node in graph.nodes[min(places) : number])
