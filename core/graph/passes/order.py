"""Orders a training step so that values are read while they are in the caches, and need memory for a short time."""

from __future__ import annotations

from clgraft.core.graph.structure import Node, Some, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem

OF_WEIGHTS = ("backward_filter", "backward_weight")


def order_gradients(graph: Some) -> Some:
    """Return the graph with gradients of weights before those of data, and updates as soon as what they read is there.

    The gradient of data is what the next problem reads, and that of weights reads a value of the forward pass: in
    between, it would drive the former from the caches. A parameter changes while its gradient is there, and no
    gradient waits in memory for the others.
    """
    return _updates_early(_weights_first(graph))


def _weights_first(graph: Some) -> Some:
    places = [float(number) for number in range(len(graph.nodes))]
    data: dict[str, int] = {}  # the gradient of data that reads each dy
    for number, node in enumerate(graph.nodes):
        direction = getattr(node.problem, "direction", "")
        if not isinstance(node.problem, (ConvProblem, DenseProblem)) or not direction.startswith("backward"):
            continue
        dy = node.named("dy")
        if direction == "backward_data":
            data[dy] = number
        elif direction in OF_WEIGHTS and dy in data and _is_there(graph, node, data[dy], number):
            places[number] = data[dy] - 0.5
    return _in_order(graph, places)


def _is_there(graph: Structure, node: Node, place: int, number: int) -> bool:
    """Return whether a node may run before the one at an earlier place: what it reads is there, and stays the same."""
    known = all(graph.writers.get(name, -1) < place for name in node.reads)
    return known and not graph.changes_between(node.reads, place, number)


def _updates_early(graph: Some) -> Some:
    places: list[float] = []  # for each node the one that it runs with: itself, or the one that an update runs after
    touched: dict[str, float] = {}  # of all nodes so far that read or write a value, the last place
    written: dict[str, float] = {}
    for number, node in enumerate(graph.nodes):
        place = float(number)
        if node.changes and set(node.writes) == set(node.changes):
            before = [written.get(name, -1) for name in node.reads] + [touched.get(name, -1) for name in node.changes]
            place = int(max(before)) + 0.5
        places.append(place)
        for seen, names in ((touched, (*node.reads, *node.writes)), (written, node.writes)):
            seen.update((name, max(place, seen.get(name, -1))) for name in names)
    return _in_order(graph, places)


def _in_order(graph: Some, places: list[float]) -> Some:
    """Return the graph with its nodes in the order of some places, equal ones in the order that they have."""
    return graph.with_nodes(node for _, node in sorted(zip(places, graph.nodes), key=lambda pair: pair[0]))
