"""Lets gradients of rectifiers read the rectifiers' results, so that nobody has to keep their inputs."""

from __future__ import annotations

import re
from dataclasses import replace

from clgraft.core.graph.passes.norms import activation_of, activation_with_gradient
from clgraft.core.graph.structure import Node, Some
from clgraft.core.operators.pointwise import PointwiseProblem

LIMITED = re.compile(r"y0 = x0 > 0 \? \(x0 < ([\d.]*[1-9][\d.]*) \? x0 : \1\) : 0;?")  # as ReLU6 has it


def read_results(graph: Some) -> Some:
    """Return the graph with gradients of rectifiers that read results instead of inputs.

    One is above 0, and below the limit, where the other is, so the bits stay the same.
    """
    nodes = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if not _is_rectifier(node):
            continue
        (before,), (after,) = node.reads, node.writes
        for number in graph.readers[before]:
            reader = nodes[number]
            if number == i or reader != graph.nodes[number]:
                continue
            if activation_with_gradient(graph, node, number) is not None:
                arguments = (after if name == before else name for name in reader.arguments)
                nodes[number] = replace(reader, arguments=tuple(arguments))
    return graph.with_nodes(nodes)


def _is_rectifier(node: Node) -> bool:
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or len(problem.inputs) != 1 or problem.float32_arguments:
        return False
    name = activation_of(node)
    leaky = name == "leaky_relu" and all(not isinstance(slope, str) and slope >= 0 for slope in node.scalars)
    return leaky or name == "relu" or LIMITED.fullmatch(problem.expression) is not None
