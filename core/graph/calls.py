"""Graphs as calls of one plan, for callers that bind memory to its arguments themselves.

The pass of a region is a compiled graph. That of a single operator is a graph too, as it was recorded: no pass joins or
turns its problems, and one problem alone is its own plan, which a context shares among all that have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from clgraft.core.graph.compiled import CompiledGraph, Signature
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.passes import needed
from clgraft.core.graph.structure import Node, Number
from clgraft.core.planning.precision import FLOAT32
from clgraft.core.problem import Argument

AS_RECORDED = "-all"  # switches of passes


class Call(NamedTuple):
    """A plan, and what fills its arguments.

    Attributes
    ----------
    plan : Plan
    arguments : tuple of Argument
        The plan's.
    names : tuple of str
        For each of them a value of the graph; ``_`` for an output that is to be skipped.
    scalars : tuple of float or str
        The plan's scalars: numbers, or names of the graph's scalars.
    constants : mapping of str to array
        What fills some of the arguments, in memory that the device uses in place.
    """

    plan: Any
    arguments: tuple[Argument, ...]
    names: tuple[str, ...]
    scalars: tuple[Number, ...]
    constants: Mapping[str, Any]
    owner: Any  # a context tells the problems of graphs as long as they exist


def graph_call(compiled: CompiledGraph, outputs: Collection[str], added: Collection[str] = ()) -> Call:
    """Return the call of a compiled graph that writes these outputs and adds to some of them."""
    plan, constants = compiled.prepared(outputs, added)
    names = tuple(argument.name for argument in plan.arguments)
    return Call(plan, plan.arguments, names, compiled.graph.scalars, constants, compiled)


def single_call(context: Any, graph: Graph, outputs: Collection[str], added: Collection[str] = ()) -> Call:
    """Return the call of a pass of a single operator that writes these outputs and adds to some of them."""
    graph = needed(graph, outputs)
    own = only_problem(graph)
    if own is None:
        return graph_call(context.compile(graph, AS_RECORDED, precision=FLOAT32), graph.outputs, added)
    plan = context.plan(own.problem)
    return Call(plan, plan.arguments, own.arguments, own.scalars, {}, None)


def only_problem(graph: Graph) -> Node | None:
    """Return the one problem that a graph consists of; None if it has more."""
    return graph.nodes[0] if len(graph.nodes) == 1 else None


def arguments_of(graph: Graph) -> tuple[Argument, ...]:
    """Return the arguments of the plan of a graph without constants, which has the values' names."""
    return Signature.of(graph).arguments()
