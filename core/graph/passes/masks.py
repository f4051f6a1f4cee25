"""Lets gradients of rectifiers read the rectifiers' results, so that nobody has to keep their inputs.

A rectifier in front of max pooling has its gradient before the pooling's, where it reads and writes fewer elements: a
maximum is above 0, and below the limit, where the element that it came from is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from clgraft.core.graph.passes.norms import activation_of, activation_with_gradient
from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure, fresh
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pooling import PoolProblem

LIMITED = re.compile(r"y0 = x0 > 0 \? \(x0 < ([\d.]*[1-9][\d.]*) \? x0 : \1\) : 0;?")  # as ReLU6 has it


def read_results(graph: Some, unread: Collection[str] = ()) -> Some:
    """Return the graph with gradients of rectifiers that read results instead of inputs.

    One is above 0, and below the limit, where the other is, so the bits stay the same.

    Parameters
    ----------
    graph : Graph
    unread : collection of str, optional
        Results that no gradient is to read.
    """
    nodes = list(graph.nodes)
    found: list[tuple[int, str, str]] = []
    for i, node in enumerate(graph.nodes):
        if not _is_rectifier(node):
            continue
        (before,), (after,) = node.reads, node.writes
        for number in graph.readers[before]:
            reader = nodes[number]
            if number == i or reader != graph.nodes[number]:
                continue
            known = activation_with_gradient(graph, node, number)
            if known is not None and after not in unread:
                arguments = (after if name == before else name for name in reader.arguments)
                nodes[number] = replace(reader, arguments=tuple(arguments))
                if activation_of(node) != "leaky_relu":  # sums of products with slopes are rounded elsewhere
                    found.append((number, known[1], after))
    return _before_pooling(graph.with_nodes(nodes), found, unread)


def _before_pooling(graph: Some, gradients: Iterable[tuple[int, str, str]], unread: Collection[str]) -> Some:
    """Return the graph with gradients of rectifiers before those of max pooling; the bits stay the same.

    Of each gradient: its number, and what it reads, the gradient that comes in and the rectifier's result.
    """
    nodes = list(graph.nodes)
    taken = set(graph.values)
    for number, incoming, result in gradients:
        place = graph.writers.get(incoming)
        if place is None or graph.readers[incoming] != (number,) or incoming in graph.outputs:
            continue
        pooling, mask = graph.nodes[place], graph.nodes[number]
        maxima = _maxima(graph, pooling, result) if set(mask.reads) == {incoming, result} else None
        if maxima is None or maxima in unread or graph.changes_between((maxima, pooling.named("dy")), place, number):
            continue
        masked = fresh(f"{maxima}.masked", taken)
        names = {incoming: pooling.named("dy"), result: maxima}
        problem = replace(mask.problem, inputs=(graph.values[maxima].shape,) * 2)
        nodes[place] = replace(mask, problem=problem, arguments=(*(names[name] for name in mask.reads), masked))
        others = {pooling.named("dy"): masked, incoming: mask.writes[0]}
        nodes[number] = replace(pooling, arguments=tuple(others.get(name, name) for name in pooling.arguments))
    return graph.with_nodes(nodes)


def _maxima(graph: Structure, pooling: Node, x: str) -> str | None:
    """Return the result of max pooling of x, if a node is its gradient, and both are in one layout."""
    problem = pooling.problem
    if not isinstance(problem, PoolProblem) or problem.operator != "max":
        return None
    if problem.direction == "backward" and pooling.arguments[0] == x:
        return pooling.named("y")
    if problem.direction != "backward_argmax":
        return None
    forward = graph.nodes[graph.writers.get(pooling.named("argmax"), 0)]
    same = forward.problem == problem.with_direction("forward_argmax")
    return forward.named("y") if same and forward.named("x") == x and forward.named("y") != SKIPPED else None


def _is_rectifier(node: Node) -> bool:
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or len(problem.inputs) != 1 or problem.float32_arguments:
        return False
    name = activation_of(node)
    leaky = name == "leaky_relu" and all(not isinstance(slope, str) and slope >= 0 for slope in node.scalars)
    return leaky or name == "relu" or LIMITED.fullmatch(problem.expression) is not None
