"""The order in which MXNet runs the backwards of operators, which is that of their writes to one array.

MXNet derives a graph of gradients from the recorded one: what flows to a value on several ways is added up, the last
reader's part first. It queues that graph's operators as it meets them on its way from the wanted gradients, one after
another, up to the heads; an operator comes after all that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx

WITHOUT_GRADIENT = ("BlockGrad",)
CACHED = "_CachedOp"  # a hybridized net in a recorded graph, if it is more than a few operators


class Changes(NamedTuple):
    """Changes of an array by operators.

    Attributes
    ----------
    order : list of int
        Places of the operators among each other, as they were called; in the order of their backwards.
    calls : list of int
        To which call each of them belongs.
    """

    order: list[int]
    calls: list[int]


class Order:
    """The order of the backwards of a graph.

    Parameters
    ----------
    graph : dict
        A symbol's JSON.
    wanted : sequence of str
        Names of the variables whose gradients are wanted, in MXNet's order.
    called : callable
        Returns of a node's number and name by what calls are sorted as they were made.
    alike : sequence of collection of str
        Names of variables that stand for the same ones.
    """

    def __init__(
        self,
        graph: Mapping[str, Any],
        wanted: Sequence[str],
        called: Callable[[int, str], int] = lambda n, _: n,
        alike: Sequence[Collection[str]] = (),
    ) -> None:
        self._nodes, self._called = graph["nodes"], called
        self._readers: dict[int, dict[int, list[int]]] = {}  # of each output of a node, the last first
        for number in range(len(self._nodes) - 1, -1, -1):
            for source, output, *_ in self._nodes[number]["inputs"]:
                self._readers.setdefault(source, {}).setdefault(output, []).append(number)
        self._places: dict[int, int] = {}
        self._variables = {node["name"]: number for number, node in enumerate(self._nodes) if node["op"] == "null"}
        for name in wanted:
            names = next((one for one in alike if name in one), (name,))
            variables = [self._variables[one] for one in names if one in self._variables]
            self._visit(sorted({one for variable in variables for one in self._flowing(variable)}, reverse=True))

    def _visit(self, readers: Iterable[int]) -> None:
        waiting: list[tuple[int, Iterator[int]]] = [(-1, iter(readers))]
        entered: set[int] = set()
        while waiting:
            number, others = waiting[-1]
            other = next((one for one in others if one not in self._places and one not in entered), None)
            if other is not None:
                entered.add(other)
                waiting.append((other, self._flowing(other)))
                continue
            waiting.pop()
            if number >= 0:
                self._places[number] = len(self._places)

    def _flowing(self, number: int) -> Iterator[int]:
        readers = self._readers.get(number, {})
        every = (reader for output in sorted(readers) for reader in readers[output])
        return (reader for reader in every if self._nodes[reader]["op"] not in WITHOUT_GRADIENT)

    def reads(self, name: str) -> int:
        """Return how many operators read a variable."""
        return len(self._calls(name))

    def place_of(self, name: str) -> int:
        """Return the place of the last backward of those that read a variable; -1 if there is none."""
        return max((self._places.get(number, -1) for number in self._calls(name)), default=-1)

    def of_calls(self, name: str, times: int = 1) -> Changes:
        """Return the changes that the calls which read a variable make.

        Parameters
        ----------
        name : str
        times : int
            How often a hybridized net reads it in one call.
        """
        calls = sorted(
            (number for number in self._calls(name) if number in self._places),
            key=lambda number: self._called(number, self._nodes[number]["name"]),
        )
        counts = [times if self._nodes[number]["op"] == CACHED else 1 for number in calls]
        firsts = [sum(counts[:place]) for place in range(len(calls))]
        found = sorted(zip((self._places[number] for number in calls), firsts, counts))
        return Changes(
            [place for _, first, count in found for place in range(first + count - 1, first - 1, -1)],
            [number for number, count in enumerate(counts) for _ in range(count)],
        )

    def _calls(self, name: str) -> list[int]:
        readers = self._readers.get(self._variables.get(name, -1), {})
        found = (number for some in readers.values() for number in some)
        return list(dict.fromkeys(number for number in found if self._nodes[number]["op"] in ("Custom", CACHED)))


def symbol_of(heads: Any) -> mx.sym.Symbol:
    """Return the recorded graph of some heads."""
    heads = heads if isinstance(heads, (list, tuple)) else [heads]
    return mx.sym.Group([mx.autograd.get_symbol(head) for head in heads])


def name_of(array: Any) -> str:
    """Return the name that a recorded array has in `symbol_of`; empty if it is in no graph."""
    try:
        return str(mx.autograd.get_symbol(array).name)
    except mx.MXNetError:
        return ""


def wanted_of(graph: Mapping[str, Any], variables: Iterable[Any]) -> list[str]:
    """Return the variables of a recorded graph whose gradients are wanted: all that have one unless some are given."""
    given = [name_of(variable) for variable in variables]
    return given or [node["name"] for node in graph["nodes"] if node["op"] == "null" and node["name"].startswith("var")]


def number_of_call(_: int, name: str) -> int:
    """Return the number that MXNet gives to a recorded operator in its name."""
    return int(name.rpartition("_")[2])
