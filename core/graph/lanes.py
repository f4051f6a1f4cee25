"""A second queue of a device, on which gradients of weights run next to the chain of norms and gradients of data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from clgraft.core.graph.passes.order import OF_WEIGHTS
from clgraft.core.graph.structure import Node, Structure
from clgraft.core.operators.conv import ConvProblem
from clgraft.core.operators.dense import DenseProblem


@dataclass(frozen=True)
class Lanes:
    """Which nodes run on the second queue, and where the queues wait for each other. Each queue keeps its order.

    Attributes
    ----------
    second : tuple of bool
        For each node, whether it runs on the second queue.
    after : tuple of int
        For each node, the earlier one of the other queue that has to end before it begins, unless its own queue has
        waited for that one before; -1: none.
    begins, ends : tuple of int
        For each node, between which places of the first queue it runs: after all nodes in front of the one, before the
        other one begins, or the number of nodes if none waits for it. Of nodes of the first queue their own place.
    """

    second: tuple[bool, ...]
    after: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, graph: Structure, arguments: Collection[str]) -> Lanes:
        """Return the lanes of a graph; `arguments` are its values in memory of the host.

        A node waits for what it reads. What changes a state waits for all of the second queue, since views of it may
        be read there; all other values are written once.
        """
        second = tuple(_may_leave(graph, node, arguments) for node in graph.nodes)
        written: tuple[dict[str, int], ...] = ({}, {})  # by queue: the node that writes a value
        last, waited, after, waits = -1, [-1, -1], [], []
        for number, (node, lane) in enumerate(zip(graph.nodes, second)):
            found = [written[not lane].get(name, -1) for name in node.reads]
            found += [last] * bool(node.changes)
            needed = max(found, default=-1)
            after.append(needed if needed > waited[lane] else -1)
            waited[lane] = max(waited[lane], needed)
            waits.append(waited[lane])
            last = number if lane else last
            written[lane].update(dict.fromkeys(node.writes, number))
        first = [number for number, lane in enumerate(second) if not lane]
        ends = [
            next((place for place in first if waits[place] >= number), len(second)) if lane else number
            for number, lane in enumerate(second)
        ]
        begins = [waits[number] + 1 if lane else number for number, lane in enumerate(second)]
        return cls(second, tuple(after), tuple(begins), tuple(ends))


def _may_leave(graph: Structure, node: Node, arguments: Collection[str]) -> bool:
    """Return whether a node computes a gradient of weights, and the device has all that it reads and writes."""
    if not isinstance(node.problem, (ConvProblem, DenseProblem)) or node.problem.direction not in OF_WEIGHTS:
        return False
    return not node.changes and not set(arguments) & {*node.reads, *node.writes}
