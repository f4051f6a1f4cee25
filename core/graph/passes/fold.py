"""Folds a batch norm for inference into the weights and the bias of the convolution or dense layer that it follows."""

from __future__ import annotations

import math
from dataclasses import replace

from clgraft.core.graph.structure import Node, Some
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.pointwise import PointwiseProblem


def fold_batch_norms(graph: Some) -> Some:
    """Return the graph with batch norms for inference as part of the convolutions and dense layers before them.

    With ``s = gamma / sqrt(var + eps)``, ``(conv(x, w) + b - mean) * s + beta`` is
    ``conv(x, w * s) + (b - mean) * s + beta``.
    The new weights cost a pass over the weights; the norm's two passes over its values are saved.
    """
    nodes: list[Node | None] = list(graph.nodes)
    taken = set(graph.values)
    before: dict[int, list[Node]] = {}
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.problem, BatchNormProblem) or node.problem.direction != "forward_inference":
            continue
        if node.problem.activation or node.problem.dtype == "float16":
            continue  # weights that are rounded to float16 once more would lose what the norm adds
        x = node.named("x")
        writer = graph.writers.get(x)
        layer = None if writer is None else nodes[writer]
        if layer is None or graph.readers[x] != (i,) or x in graph.outputs or not _serves(layer, node.problem):
            continue
        states = {state.name for state in graph.states}
        if states & set(layer.reads):
            continue  # the layer would move past a change of its state
        before[i], nodes[i] = _folded(layer, node, taken)
        nodes[writer] = None
    found: list[Node] = []
    for i, kept in enumerate(nodes):
        found += before.get(i, [])
        if kept is not None:
            found.append(kept)
    return graph.with_nodes(found)


def _serves(layer: Node, norm: BatchNormProblem) -> bool:
    problem = layer.problem
    if not isinstance(problem, (ConvProblem, DenseProblem)) or problem.direction != "forward":
        return False
    channels = problem.out_channels if isinstance(problem, ConvProblem) else problem.outputs
    return channels == norm.channels and not (isinstance(problem, DenseProblem) and norm.pixels != 1)


def _folded(layer: Node, norm: Node, taken: set[str]) -> tuple[list[Node], Node]:
    """Return the nodes that compute weights and bias, and the layer that takes the norm's place."""
    problem, channels, dtype = layer.problem, norm.problem.channels, norm.problem.dtype
    weights = next(a for a in problem.arguments() if a.name == "w")
    y = norm.named("y")

    def fresh(word: str) -> str:
        name = f"{y}.{word}"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    w, b = fresh("weights"), fresh("bias")
    gamma, beta, mean, var = (norm.named(name) for name in ("gamma", "beta", "mean", "var"))
    turned = isinstance(problem, DenseProblem) and problem.transposed
    rest = math.prod(weights.shape) // channels
    shapes = ((rest, channels), (1, channels)) if turned else ((channels, rest), (channels, 1))
    scale = PointwiseProblem(
        (shapes[0], shapes[1], shapes[1]), "y0 = x0 * (x1 / sqrt(x2 + eps));", (), ("eps",), dtype=dtype
    )
    old = "x4 - x3" if problem.bias else "-x3"
    shift = PointwiseProblem(
        ((channels,),) * (5 if problem.bias else 4),
        f"y0 = ({old}) * (x0 / sqrt(x2 + eps)) + x1;",
        (),
        ("eps",),
        dtype=dtype,
    )
    read = (gamma, beta, var, mean, *((layer.named("b"),) if problem.bias else ()))
    nodes = [
        Node(scale, (layer.named("w"), gamma, var, w), norm.scalars),
        Node(shift, (*read, b), norm.scalars),
    ]
    return nodes, Node(replace(problem, bias=True), (layer.named("x"), w, b, y))
