"""Copies of values: the problem that copies one, and copies of inputs that are outputs as well."""

from __future__ import annotations

from collections.abc import Mapping

from clgraft.core.graph.structure import Node, Some, Value, fresh
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import DTYPES, Problem


def identity(value: Value) -> Problem:
    """Return the problem whose one result is its one input, a value of any type."""
    if value.dtype in DTYPES:
        return PointwiseProblem((value.shape,), "y0 = x0;", dtype=value.dtype)
    return CastProblem(value.size, value.dtype, value.dtype)


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
