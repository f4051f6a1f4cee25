"""Joins the gradients of a convolution's data and weights, which read the same dy."""

from __future__ import annotations

from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.gradients import GradientsProblem
from clgraft.core.problem import Problem


def join_gradients(graph: Some, fits: Fits) -> Some:
    """Return the graph with both gradients of a convolution as one problem each.

    Each saves a launch, and reads of x and dy: the kernel for both reads each of them once.

    Parameters
    ----------
    graph : Graph
    fits : callable
        Whether a device serves a `GradientsProblem` by one kernel.
    """
    known: dict[Problem, bool] = {}
    nodes: list[Node | None] = list(graph.nodes)
    waiting: dict[tuple[ConvProblem, str], int] = {}  # the convolution and dy -> the gradient of its data
    for i, node in enumerate(graph.nodes):
        problem = node.problem
        if not isinstance(problem, ConvProblem) or not problem.depthwise:
            continue
        forward = problem.with_direction("forward")
        if problem.direction == "backward_data":
            waiting[forward, node.arguments[0]] = i
        if problem.direction != "backward_filter" or (forward, node.arguments[1]) not in waiting:
            continue
        x, dy, dw = node.arguments
        first = waiting.pop((forward, dy))
        _, w, dx = graph.nodes[first].arguments
        joined = GradientsProblem(forward)
        if joined not in known:
            known[joined] = fits(joined)
        if known[joined] and _there(graph, x, first):
            nodes[first], nodes[i] = Node(joined, (x, w, dy, dx, dw)), None
    return graph.with_nodes(node for node in nodes if node is not None)


def _there(graph: Structure, name: str, place: int) -> bool:
    """Return whether a value is there before a node, and never changes."""
    return graph.writers.get(name, -1) < place and name not in {state.name for state in graph.states}
