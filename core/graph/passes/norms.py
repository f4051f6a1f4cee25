"""Makes an activation part of the batch norm in front of it, and its gradient part of the batch norm's gradient."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from clgraft.core.graph.structure import SKIPPED, Node, Number, Some, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.batchnorm.following import ACTIVATIONS
from clgraft.core.operators.batchnorm.problem import KEPT
from clgraft.core.operators.pointwise import PointwiseProblem

X, WORD = re.compile(r"\bx\b"), re.compile(r"\b[xy]\b")


def join_norms(graph: Some) -> Some:
    """Return the graph with batch norms that compute the activation after them, forward and backward.

    The norm's value is computed again by the gradient instead of being kept. It may have no other readers than the
    activation and the activation's gradient.
    """
    nodes: list[Node | None] = list(graph.nodes)
    taken = set(graph.values)
    for i, norm in enumerate(graph.nodes):
        found = _match(graph, i) if isinstance(norm.problem, BatchNormProblem) else None
        if found is not None and norm.problem.direction == "forward_training" and found.gradient is not None:
            kept = tuple(_fresh(f"{found.result}.{word}", taken) for word in KEPT.split())
        else:
            kept = (SKIPPED,) * len(KEPT.split())
        if found is None:
            continue
        names = {**norm.values, "y": found.result, **dict(zip(KEPT.split(), kept))}
        nodes[i] = _with_activation(norm, found, names)
        nodes[found.activation] = None
        if found.gradient is not None:
            back = graph.nodes[found.norm_gradient]
            nodes[found.gradient] = None
            backward = {
                **back.values,
                "dy": found.incoming,
                "beta": norm.named("beta"),
                **dict(zip(KEPT.split(), kept)),
            }
            nodes[found.norm_gradient] = _with_activation(back, found, backward)
    return graph.with_nodes(node for node in nodes if node is not None)


@dataclass(frozen=True)
class _Match:
    """An activation after a norm: its name and scalars, the numbers of the nodes, the values of both sides.

    `gradient` is the activation's gradient, `norm_gradient` the norm's, which alone reads that; `incoming` is the
    gradient of the activation's result.
    """

    name: str
    scalars: tuple[Number, ...]
    activation: int
    result: str
    gradient: int | None = None
    norm_gradient: int = 0
    incoming: str = ""


def _match(graph: Structure, i: int) -> _Match | None:
    """Return what follows a norm, if that can become a part of it."""
    norm = graph.nodes[i]
    if norm.problem.activation or norm.problem.direction not in ("forward_training", "forward_inference"):
        return None
    y = norm.named("y")
    if y == SKIPPED or y in graph.outputs or not 1 <= len(graph.readers[y]) <= 2:
        return None
    first, *others = graph.readers[y]
    node = graph.nodes[first]
    name = activation_of(node)
    if name is None or node.problem.dtype != norm.problem.dtype:
        return None
    found = _Match(name, node.scalars, first, node.writes[0])
    readers = set(graph.readers[found.result])
    ways = {number: activation_with_gradient(graph, node, number) for number in sorted({*others, *readers})}
    gradients = [number for number, way in ways.items() if way is not None]
    if others and gradients != others:
        return None
    if not gradients:
        return found
    (gradient,) = gradients[:1]
    own, incoming = ways[gradient] or (name, "")
    found = replace(found, name=own)
    passed = graph.nodes[gradient].writes[0]
    if passed in graph.outputs or len(graph.readers[passed]) != 1:
        return None if others else found
    (back,) = graph.readers[passed]
    if not _is_gradient(norm, graph.nodes[back], passed):
        return None if others else found
    return replace(found, gradient=gradient, norm_gradient=back, incoming=incoming)


def activation_of(node: Node) -> str | None:
    """Return the name of the activation that a node computes, if it is one that a batch norm can have."""
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or len(problem.inputs) != 1:
        return None
    for name, following in ACTIVATIONS.items():
        if following.scalars == problem.parameters and problem.computes(f"y0 = {X.sub('x0', following.value)};"):
            return name
    return None


def activation_with_gradient(graph: Structure, node: Node, number: int) -> tuple[str, str] | None:
    """Return the activation that two nodes are, forward and backward, and the gradient that comes in; else None.

    Beside the gradient that follows from an activation, a net may state another one: a norm has some of them. The
    name is empty for functions that a norm does not have.
    """
    name, incoming = activation_of(node) or "", _derived(graph, node, number)
    if incoming is not None:
        return name, incoming
    return _stated(node, name, graph.nodes[number]) if name else None


def _derived(graph: Structure, node: Node, number: int) -> str | None:
    """Return the gradient that comes in where a node is the gradient that follows from an activation."""
    other = graph.nodes[number]
    forward = node.values
    for gradient in node.problem.gradients():
        if gradient.problem != other.problem or len(other.writes) != 1 or other.scalars != node.scalars:
            continue
        incoming = None
        for argument, name in zip(other.problem.arguments(), other.arguments):
            symbol = gradient.arguments[argument.name]
            if symbol == "dy0":
                incoming = name
            elif argument.role == "in" and forward.get(symbol) != name:
                return None
        return incoming
    return None


def _stated(node: Node, name: str, other: Node) -> tuple[str, str] | None:
    """Return the activation of the same values whose gradient a node is, and the gradient that comes in."""
    problem, value = other.problem, ACTIVATIONS[name].value
    values = {"x": node.reads[0], "y": node.writes[0]}
    if not isinstance(problem, PointwiseProblem) or len(problem.inputs) != 2 or other.scalars != node.scalars:
        return None
    for own, following in ACTIVATIONS.items():
        if following.value != value or following.scalars != problem.parameters:
            continue
        (word,) = set(WORD.findall(following.slope))
        for read, dy in ((0, 1), (1, 0)):
            text = f"y0 = x{dy} * ({WORD.sub(f'x{read}', following.slope)});"
            if other.reads[read] == values[word] and problem.computes(text):
                return own, other.reads[dy]
    return None


def _is_gradient(norm: Node, back: Node, dy: str) -> bool:
    problem = norm.problem
    if back.problem != problem.with_direction(problem.direction.replace("forward", "backward")):
        return False
    same = all(back.named(name) == norm.named(name) for name in ("x", "gamma", "mean", "var"))
    return same and back.named("dy") == dy and back.scalars == norm.scalars


def _with_activation(node: Node, found: _Match, names: Mapping[str, str]) -> Node:
    problem = replace(node.problem, activation=found.name)
    arguments = tuple(names[argument.name] for argument in problem.arguments())
    return Node(problem, arguments, (*node.scalars, *found.scalars))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
