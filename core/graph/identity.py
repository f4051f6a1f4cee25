"""Copies of values: the problem that copies one, and copies of inputs that are outputs as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clgraft.core.graph.structure import Node, Some, Value, fresh
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import DTYPES, Problem


def identity(value: Value) -> Problem:
    """Return the problem whose one result is its one input, a value of any type."""
    if value.dtype in DTYPES:
        return PointwiseProblem((value.shape,), "y0 = x0;", dtype=value.dtype)
    return CastProblem(value.size, value.dtype, value.dtype)


def is_copy(problem: Problem) -> bool:
    """Return whether a problem is an `identity`."""
    if not isinstance(problem, (CastProblem, PointwiseProblem)):
        return False
    read = problem.arguments()[0]
    return problem == identity(Value("", read.shape, read.dtype))


def copied_along(nodes: Sequence[Node], name: str, copy: str) -> tuple[Node, ...] | None:
    """Return nodes of which one that reads a value writes it to another one, too; None if none of them can."""
    for i, node in enumerate(nodes):
        problem = node.problem
        if not isinstance(problem, PointwiseProblem) or problem.alpha or problem.beta or name not in node.reads:
            continue
        place, count = node.reads.index(name), problem.assignments.outputs
        if problem.inputs[place] == problem.common_shape:
            text = f"{problem.expression.rstrip('; ')}; y{count} = x{place};"
            wide = (f"y{count}",) if f"x{place}" in problem.float32_arguments else ()
            more = {"expression": text, "float32_arguments": (*problem.float32_arguments, *wide)}
            both = replace(node, problem=replace(problem, **more), arguments=(*node.arguments, copy))
            return (*nodes[:i], both, *nodes[i + 1 :])
    return None


def names_of_copies(graph: Some) -> dict[str, str]:
    """Return for each input that is an output as well the name of its copy, which no value of the graph has."""
    taken = set(graph.values)
    given = {value.name for value in graph.inputs}
    return {name: fresh(f"{name}.out", taken) for name in graph.outputs if name in given}


def copy_inputs(graph: Some, copies: Mapping[str, str]) -> Some:
    """Return a graph all of whose outputs are computed: in place of an input it has the copy of that name."""
    nodes = [Node(identity(graph.values[name]), (name, copies[name])) for name in graph.outputs if name in copies]
    outputs = (copies.get(name, name) for name in graph.outputs)
    return graph.with_nodes((*graph.nodes, *nodes)).with_outputs(outputs) if nodes else graph
