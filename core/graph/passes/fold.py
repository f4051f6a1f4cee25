"""Makes a batch norm for inference part of the convolution or dense layer that it follows.

Where the layer's weights never change, they take the norm's scale, once. Otherwise the layer's result does: a scale and
a shift of each channel follow it, which the layer's kernel computes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from clgraft.core.graph.passes.channels import channels_of
from clgraft.core.graph.structure import Fits, Node, Some, Structure, fresh
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.batchnorm.following import ACTIVATIONS
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.planning.epilogue import CHANNEL
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import LAST


def fold_batch_norms(graph: Some, constants: Collection[str] | None = None, fits: Fits | None = None) -> Some:
    """Return the graph with batch norms for inference as part of the convolutions and dense layers before them.

    With ``s = gamma / sqrt(var + eps)``, ``(conv(x, w) + b - mean) * s + beta`` is
    ``conv(x, w * s) + (b - mean) * s + beta``.
    The new weights cost a pass over the weights; the norm's two passes over its values are saved. An activation that is
    part of the norm becomes a node of its own, which other passes join to the layer. Where weights change from run to
    run, that node computes ``y * s + t`` for each channel, and the weights stay as they are.

    Parameters
    ----------
    graph : Graph
    constants : collection of str, optional
        Inputs that never change; by default all weights count as constant.
    fits : callable, optional
        Whether a device serves a `FusedProblem` without losing a faster implementation of the layer.
    """
    fixed = None if constants is None or fits is None else _fixed(graph, constants)
    known: dict[Problem, bool] = {}
    nodes: list[Node | None] = list(graph.nodes)
    taken = set(graph.values)
    before: dict[int, list[Node]] = {}
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.problem, BatchNormProblem) or node.problem.direction != "forward_inference":
            continue
        if node.problem.float32_parameters:
            continue  # they would have to become the weights' type
        x = node.named("x")
        writer = graph.writers.get(x)
        layer = None if writer is None else nodes[writer]
        if writer is None or layer is None or graph.readers[x] != (i,) or x in graph.outputs:
            continue
        if not _serves(layer, node.problem):
            continue
        if graph.changes_between(layer.reads, writer, i):
            continue  # the layer would move past a change of its state
        if fixed is not None and fits is not None and not set(layer.reads[1:]) <= fixed:
            problem = FusedProblem(layer.problem, (CHANNEL, CHANNEL), "y0 = x0 * x1 + x2")
            if problem not in known:
                known[problem] = fits(problem)
            if known[problem]:
                before[i], nodes[i] = _scaled(layer, node, taken)
                continue
        before[i], nodes[i] = _folded(layer, node, taken)
        nodes[writer] = None
    found: list[Node] = []
    for i, kept in enumerate(nodes):
        found += before.get(i, [])
        if kept is not None:
            found.append(kept)
    return graph.with_nodes(found)


def _fixed(graph: Structure, constants: Collection[str]) -> set[str]:
    """Return the values that follow from constants alone."""
    fixed = set(constants)
    for node in graph.nodes:
        if set(node.reads) <= fixed and not node.changes:
            fixed |= set(node.writes)
    return fixed


def _serves(layer: Node, norm: BatchNormProblem) -> bool:
    problem = layer.problem
    if not isinstance(problem, (ConvProblem, DenseProblem)) or problem.direction != "forward":
        return False
    return channels_of(problem) == (norm.channels, norm.pixels)


def _scaled(layer: Node, norm: Node, taken: set[str]) -> tuple[list[Node], Node]:
    """Return the node that computes a scale and a shift of each channel, and the one that applies them."""
    channels, dtype, y = norm.problem.channels, norm.problem.dtype, norm.named("y")
    scale, shift = fresh(f"{y}.scale", taken), fresh(f"{y}.shift", taken)
    text = "real s = x0 / sqrt(x3 + eps); y0 = s; y1 = x1 - x2 * s;"
    numbers = PointwiseProblem(((channels,),) * 4, text, (), ("eps",), dtype=dtype)
    read = (norm.named(name) for name in ("gamma", "beta", "mean", "var"))
    shape = layer.problem.arguments()[-1].shape
    last = isinstance(layer.problem, ConvProblem) and layer.problem.layout == LAST
    vector = (channels,) if last else (channels, *(1 for _ in shape[2:]))
    text = f"real x = x0 * x1 + x2; y0 = {_activated(norm.problem)};"
    applied = PointwiseProblem((shape, vector, vector), text, (), norm.problem.activation_scalars, dtype=dtype)
    nodes = [Node(numbers, (*read, scale, shift), norm.scalars[:1])]
    return nodes, Node(applied, (norm.named("x"), scale, shift, y), norm.scalars[1:])


def _activated(norm: BatchNormProblem) -> str:
    """Return the activation of a norm's value x."""
    return ACTIVATIONS[norm.activation].value if norm.activation else "x"


def _folded(layer: Node, norm: Node, taken: set[str]) -> tuple[list[Node], Node]:
    """Return the nodes that compute weights and bias, and what takes the norm's place.

    Without an activation that is the layer; otherwise the layer is the last of the first nodes.
    """
    problem, channels, dtype = layer.problem, norm.problem.channels, norm.problem.dtype
    weights = next(a for a in problem.arguments() if a.name == "w")
    y = norm.named("y")

    w, b = fresh(f"{y}.weights", taken), fresh(f"{y}.bias", taken)
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
        Node(scale, (layer.named("w"), gamma, var, w), norm.scalars[:1]),
        Node(shift, (*read, b), norm.scalars[:1]),
    ]
    active = norm.problem.activation
    result = fresh(f"{y}.before", taken) if active else y
    folded = Node(replace(problem, bias=True), (layer.named("x"), w, b, result))
    if not active:
        return nodes, folded
    shape, text = problem.arguments()[-1].shape, f"real x = x0; y0 = {_activated(norm.problem)};"
    following = PointwiseProblem((shape,), text, (), norm.problem.activation_scalars, dtype=dtype)
    return [*nodes, folded], Node(following, (result, y), norm.scalars[1:])
