"""Joins a depthwise convolution and the convolution of single pixels that alone reads its result."""

from __future__ import annotations

from clgraft.core.errors import ProblemError
from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.separable import SeparableProblem
from clgraft.core.operators.separable.problem import conv_of
from clgraft.core.problem import SMALL, Problem


def join_separable(graph: Some, fits: Fits) -> Some:
    """Return the graph with depthwise separable convolutions as one problem each, with what follows their layers.

    Each saves a launch, one write and one read of the value between the layers.

    Parameters
    ----------
    graph : Graph
    fits : callable
        Whether a device serves a `SeparableProblem` by one kernel, and faster than its layers.
    """
    known: dict[Problem, bool] = {}
    nodes: list[Node | None] = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.problem, (ConvProblem, FusedProblem)):
            continue
        name = node.arguments[0]
        first = _only_writer(graph, nodes, name, i)
        problem = None if first is None or name in node.reads[1:] else _separable(first.problem, node.problem)
        if first is None or problem is None:
            continue
        if problem not in known:
            known[problem] = fits(problem)
        if known[problem]:
            arguments = (*first.arguments[:-1], *node.arguments[1:])
            nodes[graph.writers[name]], nodes[i] = None, Node(problem, arguments, (*first.scalars, *node.scalars))
    return graph.with_nodes(node for node in nodes if node is not None)


def _only_writer(graph: Structure, nodes: list[Node | None], name: str, reader: int) -> Node | None:
    """Return the node that computes a value for one reader alone, if it may run where the reader does."""
    writer = graph.writers.get(name)
    node = None if writer is None else nodes[writer]
    if writer is None or node is None or graph.readers[name] != (reader,) or name in graph.outputs:
        return None
    return None if graph.changes_between(node.reads, writer, reader) else node


def _separable(first: Problem, second: Problem) -> SeparableProblem | None:
    """Return two layers as one problem, if they are one: not of one channel, nor with 16 bits in between."""
    try:
        found = SeparableProblem(first, second)  # type: ignore[arg-type]
    except ProblemError:
        return None
    return found if found.dtype not in SMALL and conv_of(found.product).in_channels > 1 else None
