"""Joins sums over single arrays whose results are added up, such as what tells whether any gradient is infinite."""

from __future__ import annotations

from dataclasses import replace

from clgraft.core.graph.structure import Node, Some
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.totals import TotalsProblem
from clgraft.core.operators.totals.problem import MOST_ARRAYS, sums_vector


def join_totals(graph: Some) -> Some:
    """Return the graph in which sums of alike sums are one problem; what is computed stays but for roundings."""
    writers = graph.writers
    removed: set[int] = set()
    joined: dict[int, Node] = {}
    outputs = set(graph.outputs)
    for number, node in enumerate(graph.nodes):
        problem = node.problem
        if not isinstance(problem, PointwiseProblem) or set(problem.inputs) != {(1,)}:
            continue
        count = len(problem.inputs)
        if not 1 < count <= MOST_ARRAYS or not problem.computes(
            PointwiseProblem.sum_of((1,), count, problem.dtype).expression
        ):
            continue
        places = [writers.get(name, -1) for name in node.reads]
        if len(set(places)) < count or -1 in places or not outputs.isdisjoint(node.reads):
            continue
        members = [graph.nodes[place] for place in places]
        steps = [one.problem for one in members if isinstance(one.problem, PointwiseProblem)]
        if len(steps) < count or not all(sums_vector(step) for step in steps):
            continue
        alike = {(step.expression, step.parameters, one.scalars) for step, one in zip(steps, members)}
        small = {step.dtype for step in steps} - {problem.dtype}
        fits = len(alike) == 1 and len(small) <= 1 and all(step.type_of("y0") == problem.dtype for step in steps)
        alone = all(list(graph.readers[name]) == [number] for name in node.reads)
        if not fits or not alone or _change(graph, members, places, number):
            continue
        read = [one.reads[0] for one in members]
        base = max(steps, key=lambda step: step.dtype in small)
        wide = tuple(a for a, step in enumerate(steps) if step.dtype not in small) if small else ()
        total = TotalsProblem(replace(base, inputs=steps[0].inputs), tuple(step.inputs[0][0] for step in steps), wide)
        joined[number] = Node(total, (*read, *node.writes), members[0].scalars)
        removed.update(places)
    if not joined:
        return graph
    return graph.with_nodes(joined.get(i, node) for i, node in enumerate(graph.nodes) if i not in removed)


def _change(graph: Some, members: list[Node], places: list[int], number: int) -> bool:
    """Return whether anything up to a node changes what members before it read."""
    read = {name for one in members for name in one.reads}
    return any(read & set(node.changes) for node in graph.nodes[min(places) : number])
