"""Joins a depthwise convolution and the convolution of single pixels that alone reads its result."""

from __future__ import annotations

import math

from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.separable import SeparableProblem
from clgraft.core.operators.separable.problem import conv_of
from clgraft.core.planning.epilogue import WHOLE
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import FIRST


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
        if not _is_product(node.problem):
            continue
        name = node.named("x")
        first = _depthwise_of(graph, nodes, name, i)
        if first is None or name in node.reads[1:]:
            continue
        problem = SeparableProblem(first.problem, node.problem)  # type: ignore[arg-type]
        if problem not in known:
            known[problem] = fits(problem)
        if known[problem]:
            arguments = (*first.arguments[:-1], *node.arguments[1:])
            nodes[graph.writers[name]], nodes[i] = None, Node(problem, arguments, (*first.scalars, *node.scalars))
    return graph.with_nodes(node for node in nodes if node is not None)


def _conv(problem: Problem) -> ConvProblem | None:
    """Return the convolution of a layer that can be part of a `SeparableProblem`."""
    found = conv_of(problem) if isinstance(problem, (ConvProblem, FusedProblem)) else None  # type: ignore[arg-type]
    known = isinstance(found, ConvProblem) and found.direction == "forward" and found.layout == FIRST
    return found if known and found.dtype != "float16" else None  # type: ignore[union-attr]


def _is_product(problem: Problem) -> bool:
    conv = _conv(problem)
    if conv is None or conv.groups != 1 or any(conv.pad_begin + conv.pad_end):
        return False
    return math.prod(conv.kernel + conv.stride) == 1 and conv.in_channels > 1


def _depthwise_of(graph: Structure, nodes: list[Node | None], name: str, reader: int) -> Node | None:
    """Return the depthwise layer that computes a value for one reader alone, if it may run where the reader does."""
    writer = graph.writers.get(name)
    layer = None if writer is None else nodes[writer]
    if layer is None or graph.readers[name] != (reader,) or name in graph.outputs:
        return None
    conv = _conv(layer.problem)
    if conv is None or not conv.depthwise or conv.out_channels != conv.in_channels:
        return None
    if isinstance(layer.problem, FusedProblem) and WHOLE in layer.problem.extras:
        return None
    states = {state.name for state in graph.states}
    return None if states & set(layer.reads) else layer  # it would move behind a change of its state
