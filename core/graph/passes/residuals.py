"""Makes the sum with another value, and an activation after it, part of the batch norm in front of them."""

from __future__ import annotations

import math
from dataclasses import replace

from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.batchnorm.following import ACTIVATIONS
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import renamed
from clgraft.core.problem import Problem


def join_residuals(graph: Some, fits: Fits) -> Some:
    """Return the graph with training batch norms that add what a sum after them adds, as blocks with shortcuts have it.

    Each saves one write and one read of the norm's result, which nothing else may read. Gradients are derived before.

    Parameters
    ----------
    graph : Graph
    fits : callable
        Whether a kernel of the device serves the norm with the sum.
    """
    known: dict[Problem, bool] = {}
    nodes: list[Node | None] = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        activation = _summed(node.problem)
        if activation is None or len(node.reads) != 2:
            continue
        for name, other in (node.reads, node.reads[::-1]):
            norm = _norm_of(graph, nodes, name, other, i)
            if norm is None:
                continue
            problem = replace(norm.problem, residual=True, activation=activation)  # type: ignore[type-var]
            if known.setdefault(problem, fits(problem)):
                names = {**norm.values, "y": node.writes[0], "residual": other}
                arguments = tuple(names[argument.name] for argument in problem.arguments())
                nodes[graph.writers[name]] = Node(problem, arguments, (*norm.scalars, *node.scalars))
                nodes[i] = None
                break
    return graph.with_nodes(node for node in nodes if node is not None)


def _summed(problem: Problem) -> str | None:
    """Return the activation of the sum of two values of one size that a problem is; empty: none; None: another one."""
    if not isinstance(problem, PointwiseProblem) or len(problem.inputs) != 2:
        return None
    if any(math.prod(shape) != math.prod(problem.common_shape) for shape in problem.inputs):
        return None
    if problem.computes("y0 = x0 + x1;"):
        return ""
    for name, following in ACTIVATIONS.items():
        if len(following.scalars) != len(problem.parameters):
            continue
        words = {"x": "joined", **dict(zip(following.scalars, problem.parameters))}
        value = renamed(following.value, words)
        if problem.computes(f"real joined = x0 + x1; y0 = {value};"):
            return name
    return None


def _norm_of(graph: Structure, nodes: list[Node | None], name: str, other: str, reader: int) -> Node | None:
    """Return the norm that computes a value for one reader alone, if the other value is there when it runs."""
    writer = graph.writers.get(name, -1)
    norm = nodes[writer] if writer >= 0 else None
    if norm is None or graph.readers[name] != (reader,) or name in graph.outputs or name == other:
        return None
    problem = norm.problem
    if not isinstance(problem, BatchNormProblem) or problem.direction != "forward_training":
        return None
    if problem.activation or problem.residual or norm.named("y") != name or problem.dtype != graph.values[other].dtype:
        return None
    late = graph.writers.get(other, -1) > writer
    return None if late or graph.changes_between((other,), writer, reader) else norm
