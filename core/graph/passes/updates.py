"""Joins updates of single arrays: of parameters and their histories, and of moving averages.

A training step has some for each layer, and a launch takes longer than the few bytes that it moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clgraft.core.graph.structure import Node, Number, Some, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.batchnorm.problem import MOVED
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.operators.pointwise.expression import renamed
from clgraft.core.operators.update import UpdateProblem, UpdatesProblem
from clgraft.core.operators.update.together import MOST_ARRAYS

MOST_ELEMENTS = 2**20  # of an array: with more, a launch is short compared with what it moves
MOST_ON_CPUS = 2**14  # there a launch is shorter, and what was just computed is in a cache


@dataclass(frozen=True)
class _Update:
    """An update: its node's number, its problem with vectors, and the node before which it has to run."""

    number: int
    step: PointwiseProblem
    reads: tuple[str, ...]
    scalars: tuple[Number, ...]
    due: int

    @property
    def size(self) -> int:
        return self.step.inputs[-1][0]

    @property
    def kind(self) -> tuple[object, ...]:
        """What members of one problem have in common: the text, and the inputs of one element."""
        single = tuple((i, self.reads[i]) for i, shape in enumerate(self.step.inputs) if shape == (1,) != (self.size,))
        text = (self.step.expression, self.step.parameters, self.step.dtype, self.step.float32_arguments)
        return (*text, len(self.reads), single)


def join_updates(graph: Some, most: int = MOST_ELEMENTS) -> Some:
    """Return the graph with updates joined; what is computed stays the same but for contracted roundings.

    Parameters
    ----------
    graph : Graph
    most : int
        Elements of an array that is joined to others.

    Notes
    -----
    Each one is computed where the last one of its problem was: nothing between reads or changes its states, or
    changes what it reads.
    """
    nodes: dict[int, Node] = dict(enumerate(graph.nodes))
    kinds: dict[tuple[object, ...], list[_Update]] = {}
    for number in range(len(graph.nodes)):
        found = _update(graph, number, most)
        if found is not None:
            kinds.setdefault(found.kind, []).append(found)
    for alike in kinds.values():
        left = alike
        while left:
            members = _together(left)
            left = [one for one in left if one not in members]
            if len(members) > 1:
                for one in members:
                    del nodes[one.number]
                nodes[max(one.number for one in members)] = _node(members)
    if len(nodes) == len(graph.nodes):
        return graph
    return graph.with_nodes(node for _, node in sorted(nodes.items()))


def _update(graph: Structure, number: int, most: int) -> _Update | None:
    """Return the update that a node is, if its arrays have at most so many elements and lie alike."""
    node = graph.nodes[number]
    problem, scalars = node.problem, node.scalars
    if isinstance(problem, BatchNormProblem) and problem.direction == "update_statistics":
        step = _moved(problem)
    elif isinstance(problem, UpdateProblem):
        step = problem.step
    else:
        return None
    size = math.prod(step.common_shape)
    if not 0 < size <= most:
        return None
    sizes = [math.prod(shape) for shape in step.inputs]
    if any(one not in (1, size) for one in sizes):
        return None
    vectors = replace(step, inputs=tuple((one,) for one in sizes))
    return _Update(number, vectors, node.reads, scalars, _due(graph, number))


def _moved(problem: BatchNormProblem) -> PointwiseProblem:
    """Return what becomes of moving averages as assignments."""
    arguments = problem.arguments()
    places = {argument.name: f"x{i}" for i, argument in enumerate(arguments)}
    values = (renamed(value, places) for value in MOVED)
    text = "; ".join(f"y{i} = {value}" for i, value in enumerate(values))
    shapes = tuple(argument.shape for argument in arguments)
    return PointwiseProblem(shapes, text, parameters=problem.scalars(), dtype=arguments[0].dtype)


def _due(graph: Structure, number: int) -> int:
    """Return the number of the first later node that an update has to run before."""
    node = graph.nodes[number]
    changed, read = set(node.changes), set(node.reads)
    for later in range(number + 1, len(graph.nodes)):
        other = graph.nodes[later]
        if changed & {*other.reads, *other.writes} or read & set(other.changes):
            return later
    return len(graph.nodes)


def _together(left: Sequence[_Update]) -> list[_Update]:
    """Return those that can run with the first one: none is due before the last of them."""
    members = [left[0]]
    for one in left[1:]:
        if len(members) < MOST_ARRAYS and one.number < min(member.due for member in members):
            members.append(one)
    return members


def _node(members: Sequence[_Update]) -> Node:
    members = sorted(members, key=lambda one: -one.size)
    first = members[0]
    names = first.step.scalars()
    own = tuple(n for i, n in enumerate(names) if len({one.scalars[i] for one in members}) > 1)
    problem = UpdatesProblem(first.step, tuple(one.size for one in members), own)
    values = {name: first.scalars[i] for i, name in enumerate(names)}
    for a, one in enumerate(members):
        values.update({f"{name}_{a}": one.scalars[i] for i, name in enumerate(names) if name in own})
    arrays = {problem.named(a)[f"x{i}"]: name for a, one in enumerate(members) for i, name in enumerate(one.reads)}
    arguments = tuple(arrays[argument.name] for argument in problem.arguments())
    return Node(problem, arguments, tuple(values[name] for name in problem.scalars()))
