"""Makes a pointwise problem that follows a convolution or a dense layer part of the kernel that computes the layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clgraft.core.graph.passes.channels import channels_of
from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.fused.problem import MOST_EXTRAS
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import IDENTIFIER
from clgraft.core.operators.pointwise.loop import broadcast_strides
from clgraft.core.planning.epilogue import CHANNEL, WHOLE
from clgraft.core.problem import Problem


def fuse_epilogues(graph: Some, fits: Fits) -> Some:
    """Return the graph with layers that compute what follows them: activations, scales, shifts, sums with other values.

    Each saves one write and one read of the layer's result. A result that anything else reads stays as it is.

    Parameters
    ----------
    graph : Graph
    fits : callable
        Whether a device serves a `FusedProblem` without losing a faster implementation of the layer.
    """
    known: dict[Problem, bool] = {}
    nodes: list[Node | None] = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        for name in sorted(set(node.reads), key=lambda name: -graph.writers.get(name, -1)):
            layer = _layer_of(graph, nodes, name, i)
            fused = None if layer is None else _fused(layer, node, name)
            if fused is None:
                continue
            problem = fused.problem
            if problem not in known:
                known[problem] = fits(problem)
            if known[problem]:
                nodes[graph.writers[name]], nodes[i] = None, fused
                break
    return graph.with_nodes(node for node in nodes if node is not None)


def _layer_of(graph: Structure, nodes: list[Node | None], name: str, reader: int) -> Node | None:
    """Return the layer that computes a value for one reader alone, if it may run where the reader does."""
    writer = graph.writers.get(name)
    layer = None if writer is None else nodes[writer]
    if writer is None or layer is None or graph.readers[name] != (reader,) or name in graph.outputs:
        return None
    if not isinstance(layer.problem, (ConvProblem, DenseProblem)) or layer.problem.direction != "forward":
        return None
    return None if graph.changes_between(layer.reads, writer, reader) else layer


@dataclass(frozen=True)
class _Layout:
    """How a pointwise problem sees a layer's result of so many channels, with so many elements from one to the next."""

    channels: int
    apart: int
    common: tuple[int, ...]

    def kind(self, shape: tuple[int, ...]) -> str | None:
        """Return the kind of an extra input; None if it is neither."""
        if math.prod(shape) == math.prod(self.common):
            return WHOLE
        step = 1
        for size, stride in zip(self.common[::-1], broadcast_strides(shape, self.common)[::-1]):
            inside = self.apart <= step and step * size <= self.apart * self.channels
            if size > 1 and stride != (step // self.apart if inside else 0):
                return None
            step *= size
        return CHANNEL if math.prod(shape) == self.channels else None


def _fused(layer: Node, node: Node, value: str) -> Node | None:
    """Return a layer and the pointwise problem that reads its result as one node; None if they cannot be one."""
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or problem.alpha or problem.beta or any(problem.reductions):
        return None
    if problem.assignments.outputs != 1 or problem.dtype != layer.problem.dtype:
        return None
    channels, apart = channels_of(layer.problem)
    layout = _Layout(channels, apart, problem.common_shape)
    names: dict[str, str] = {}
    extras: list[str] = []
    kinds: list[str] = []
    for i, (name, shape) in enumerate(zip(node.reads, problem.inputs)):
        kind = layout.kind(shape)
        if kind is None or (name == value and kind != WHOLE):
            return None
        if name == value:
            names[f"x{i}"] = "x0"
            continue
        names[f"x{i}"] = f"x{len(extras) + 1}"
        extras.append(name)
        kinds.append(kind)
    if len(extras) > MOST_EXTRAS:
        return None
    expression = IDENTIFIER.sub(lambda found: names.get(found[0], found[0]), problem.expression)
    whole = FusedProblem(layer.problem, tuple(kinds), expression, problem.parameters)
    return Node(whole, (*layer.reads, *extras, *node.writes), node.scalars)
