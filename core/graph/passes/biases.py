"""Makes the gradient of a bias in front of a training batch norm an output of the norm's gradient."""

from __future__ import annotations

import math
from dataclasses import replace

from clgraft.core.graph.structure import Node, Some
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import FIRST, LAST


def join_biases(graph: Some) -> Some:
    """Return the graph in which sums over what a batch norm's gradient leaves come from that gradient.

    Each saves a launch and a read of the gradient. A norm takes away what a bias adds, so these sums are 0.
    """
    nodes: list[Node | None] = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if getattr(node.problem, "direction", "") != "backward_bias" or not node.writes:
            continue
        writer = graph.writers.get(node.reads[0], -1)
        norm = nodes[writer] if writer >= 0 else None
        if norm is not None and _sums(node.problem, norm, node.reads[0]):
            problem = replace(norm.problem, bias=True)  # type: ignore[type-var]
            nodes[writer] = Node(problem, (*norm.arguments, node.writes[0]), norm.scalars)
            nodes[i] = None
    return graph if None not in nodes else graph.with_nodes(node for node in nodes if node is not None)


def _sums(problem: Problem, norm: Node, dy: str) -> bool:
    """Return whether a problem sums the channels of a norm's gradient, which nothing has summed so far."""
    before = norm.problem
    if not isinstance(before, BatchNormProblem) or before.direction != "backward_training" or before.bias:
        return False
    read, written = problem.arguments()
    pixels = 1 if getattr(problem, "layout", FIRST) == LAST else math.prod(read.shape[2:])
    alike = (written.size, written.dtype, pixels) == (before.channels, before.type_of("dbias"), before.pixels)
    return norm.named("dx") == dy and alike
