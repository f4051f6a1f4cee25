"""Makes a pointwise problem that follows a convolution or a dense layer part of the kernel that computes the layer.

The data gradient of a convolution is such a layer too: gradients of other branches are added to it, and a rectifier's
is one that follows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from clgraft.core.graph.passes.channels import channels_of
from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.fused import FusedProblem
from clgraft.core.operators.fused.problem import MOST_EXTRAS, fusable
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import renamed
from clgraft.core.operators.pointwise.loop import broadcast_strides
from clgraft.core.planning.epilogue import CHANNEL, WHOLE
from clgraft.core.problem import SMALL, Problem

WIDE = "float32"


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
    casts: dict[int, tuple[Node, ...]] = {}
    nodes: list[Node | None] = list(graph.nodes)
    for i, node in enumerate(graph.nodes):
        for name in sorted(set(node.reads), key=lambda name: -graph.writers.get(name, -1)):
            layer = _layer_of(graph, nodes, name, i)
            fused = None if layer is None or _reads_sums(graph, node) else _fused(layer, node, name)
            if fused is None:
                continue
            problem = fused.problem
            if problem not in known:
                known[problem] = fits(problem)
            if known[problem]:
                fused, casts[i] = _in_one_type(graph, nodes, i, fused)
                nodes[graph.writers[name]], nodes[i] = None, fused
                break
    pairs = ((*casts.get(i, ()), node) for i, node in enumerate(nodes) if node is not None)
    return graph.with_nodes(node for pair in pairs for node in pair)


def _reads_sums(graph: Structure, node: Node) -> bool:
    """Return whether a mixed node reads a reduction's result in float32, which 16 bits may not hold."""
    wide = getattr(node.problem, "float32_arguments", ())
    for i, name in enumerate(node.reads):
        writer = graph.writers.get(name)
        if f"x{i}" in wide and writer is not None and any(getattr(graph.nodes[writer].problem, "reductions", ())):
            return True
    return False


def _in_one_type(graph: Structure, nodes: list[Node | None], place: int, fused: Node) -> tuple[Node, tuple[Node, ...]]:
    """Return a layer that reads float32 vectors of a mixed node in its own type, and the casts that this takes.

    A pointwise problem that computes vectors for it alone writes them in that type, in place.
    """
    node = graph.nodes[place]
    problem = node.problem
    assert isinstance(problem, PointwiseProblem)
    renamed: dict[str, str] = {}
    casts: list[Node] = []
    for i, name in enumerate(dict.fromkeys(node.reads)):
        if f"x{node.reads.index(name)}" not in problem.float32_arguments:
            continue
        number = graph.writers.get(name, -1)
        writer = nodes[number] if number >= 0 else None
        own = writer.problem if writer is not None else None
        alone = graph.readers[name] == (place,) and name not in graph.outputs
        if isinstance(own, PointwiseProblem) and alone and own.dtype in (problem.dtype, WIDE) and not own.beta:
            assert writer is not None
            named = {argument.name: value for argument, value in zip(own.arguments(), writer.arguments)}
            wide = tuple(key for key, value in named.items() if own.type_of(key) == WIDE and value != name)
            typed = replace(own, dtype=problem.dtype, float32_arguments=wide)
            nodes[number] = replace(writer, problem=typed)
            continue
        shape = graph.values[name].shape
        renamed[name] = f"{node.writes[0]}.extra{i}"
        cast = PointwiseProblem((shape,), "y0 = x0;", dtype=problem.dtype, float32_arguments=("x0",))
        casts.append(Node(cast, (name, renamed[name])))
    arguments = tuple(renamed.get(value, value) for value in fused.arguments)
    return replace(fused, arguments=arguments), tuple(casts)


def _layer_of(graph: Structure, nodes: list[Node | None], name: str, reader: int) -> Node | None:
    """Return the layer that computes a value for one reader alone, if it may run where the reader does."""
    writer = graph.writers.get(name)
    layer = None if writer is None else nodes[writer]
    if writer is None or layer is None or graph.readers[name] != (reader,) or name in graph.outputs:
        return None
    problem = layer.problem
    # data gradients have epilogues on matrix units that multiply 16 bits
    direction = getattr(problem, "direction", "")
    if not fusable(problem) or (direction != "forward" and problem.dtype not in SMALL):
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
    wide = problem.float32_arguments
    if "y0" in wide or value in {name for i, name in enumerate(node.reads) if f"x{i}" in wide}:
        return None
    channels, apart = channels_of(layer.problem)
    layout = _Layout(channels, apart, problem.common_shape)
    names: dict[str, str] = {}
    extras: list[str] = []
    kinds: list[str] = []
    for i, (name, shape) in enumerate(zip(node.reads, problem.inputs)):
        kind = layout.kind(shape)
        if kind is None or (name == value and kind != WHOLE) or (kind == WHOLE and f"x{i}" in wide):
            return None
        if name == value:
            names[f"x{i}"] = "x0"
            continue
        names[f"x{i}"] = f"x{len(extras) + 1}"
        extras.append(name)
        kinds.append(kind)
    if len(extras) > MOST_EXTRAS:
        return None
    expression = renamed(problem.expression, names)
    whole = FusedProblem(layer.problem, tuple(kinds), expression, problem.parameters)
    return Node(whole, (*layer.reads, *extras, *node.writes), node.scalars)
