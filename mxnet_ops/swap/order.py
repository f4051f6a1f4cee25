"""Keeps the order of a symbol's arguments: a region that would change it is divided.

MXNet lists variables as it meets them on a walk from the outputs: all inputs of a node, in turn, before the next one. A
region has the inputs of all its operators, so that the walk may meet a variable earlier than before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Callable

from clgraft.mxnet_ops.engine.operator import operator_of

Entry = tuple[int, int]  # a node and its output
Group = list[int]  # the nodes of a region, in order


def inputs_of(group: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> tuple[list[Entry], list[Entry]]:
    """Return what a group reads from outside, and its auxiliary states, in the order of the symbol."""
    inputs: set[Entry] = set()
    auxiliary: set[Entry] = set()
    members = set(group)
    for number in group:
        count = len(operator_of(nodes[number]).arguments)
        for place, entry in enumerate(nodes[number]["inputs"]):
            if entry[0] not in members:
                (inputs if place < count else auxiliary).add((entry[0], entry[1]))
    return sorted(inputs), sorted(auxiliary)


@dataclass
class _Walk:
    """What a walk met.

    Attributes
    ----------
    variables : list of int
        In the order in which MXNet lists them.
    trails : dict of int to list of int
        The groups on the way to each variable, from the outputs on.
    left : dict of int to int
        When the walk left each node that is in no group.
    """

    variables: list[int] = field(default_factory=list)
    trails: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)


def _walk(nodes: Sequence[Mapping[str, Any]], heads: Sequence[int], groups: Sequence[Group]) -> _Walk:
    group_of = {number: index for index, group in enumerate(groups) for number in group}
    found, seen = _Walk(), set()
    trail: list[tuple[int, int, Any]] = []  # a node, its group or -1, and the inputs that are left

    def enter(number: int) -> None:
        index = group_of.get(number, -1)
        unit = number if index < 0 else ~index
        if unit in seen:
            return
        seen.add(unit)
        if index >= 0:
            inputs, auxiliary = inputs_of(groups[index], nodes)
            sources = [entry[0] for entry in inputs + auxiliary]
        else:
            sources = [entry[0] for entry in nodes[number]["inputs"]]
        if nodes[number]["op"] == "null":
            found.variables.append(number)
            found.trails[number] = [group for _, group, _ in trail if group >= 0]
        trail.append((number, index, iter(sources)))

    for head in heads:
        enter(head)
        while trail:
            number, _, sources = trail[-1]
            source = next(sources, None)
            if source is not None:
                enter(source)
            else:
                found.left[number] = len(found.left)
                trail.pop()
    return found


def keep_order(
    nodes: Sequence[Mapping[str, Any]],
    heads: Sequence[int],
    groups: Sequence[Group],
    states: Collection[str],
    regions_of: Callable[[Group], list[Group]],
) -> list[Group]:
    """Return groups with which a symbol lists its arguments, and its auxiliary states, as without any.

    Parameters
    ----------
    nodes, heads
        Of the symbol's JSON graph.
    groups : sequence of list of int
        What would become regions.
    states : collection of str
        Names of the auxiliary states.
    regions_of : callable
        Returns what is left of a part of a group as groups.
    """
    groups, before = list(groups), _walk(nodes, heads, ())
    while True:
        after = _walk(nodes, heads, groups)
        moved = _first_moved(nodes, before.variables, after.variables, states)
        if moved is None:
            return groups
        expected, met = moved
        trail = after.trails[met]
        if not trail:
            return []
        index, parts = trail[-1], []
        for when, one in product((before.left[expected], before.left[met]), reversed(trail)):
            first = [number for number in groups[one] if before.left[number] < when]
            if first and len(first) < len(groups[one]):
                index, parts = one, [first, [number for number in groups[one] if before.left[number] > when]]
                break
        groups[index : index + 1] = [group for part in parts for group in regions_of(part)]


def _first_moved(
    nodes: Sequence[Mapping[str, Any]], before: Sequence[int], after: Sequence[int], states: Collection[str]
) -> tuple[int, int] | None:
    """Return the first variable that another one comes before, and that one."""
    for auxiliary in (False, True):
        own = {number for number in before if (nodes[number]["name"] in states) == auxiliary}
        for expected, met in zip(*([number for number in found if number in own] for found in (before, after))):
            if expected != met:
                return expected, met
    return None
