"""Graphs: problems that share named values, with their text, their gradients, and a builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clgraft.core.graph.differentiate import gradients
from clgraft.core.graph.structure import SKIPPED, Node, Number, Structure, Value, new_node
from clgraft.core.graph.text import read_graph, write_graph
from clgraft.core.problem import Problem, parse


@dataclass(frozen=True)
class Graph(Structure):
    """Problems in the order in which they run, and the values that they share.

    Every value is an input, a state, or an output of exactly one node that comes before all its readers. States are
    changed in place by nodes with ``inout`` arguments; a node reads what the nodes before it left.

    Parameters
    ----------
    nodes : tuple of Node
    inputs : tuple of Value
    outputs : tuple of str
        Names of values that a run hands out, computed by nodes.
    states : tuple of Value, optional
    scalars : tuple of str, optional
        Numbers that every run needs.

    Raises
    ------
    ProblemError
        If a name is invalid or unknown, a value is written twice, or sizes or dtypes differ.
    """

    def gradients(self, wrt: Sequence[str], outputs: Sequence[str] | None = None) -> Graph:
        """Return the graph that also computes gradients (see `clgraft.core.graph.differentiate.gradients`)."""
        return gradients(self, wrt, outputs)

    def __str__(self) -> str:
        return write_graph(self)


def parse_graph(text: str) -> Graph:
    """Return the graph of a text, which is what ``str(graph)`` returns.

    Raises
    ------
    ProblemError
        Naming the line that cannot be read, or what does not fit together.
    """
    return Graph(**read_graph(text))


class GraphBuilder:
    """Collects nodes in the order in which they are added, and names their values.

    Parameters
    ----------
    graph : Graph, optional
        What there is already.
    prefix : str
        What the names of values begin with: none of the graph's values may have such a name.

    Examples
    --------
    >>> builder = GraphBuilder()
    >>> x, w = builder.input("x", (8, 3, 32, 32)), builder.input("w", (16, 3, 3, 3))
    >>> y, = builder.add("conv forward n8 ic3 ih32 iw32 oc16 kh3 kw3 ph1 pw1", x, w)
    >>> graph = builder.graph(y)
    """

    def __init__(self, graph: Graph | None = None, prefix: str = "v") -> None:
        self._nodes: list[Node] = [] if graph is None else list(graph.nodes)
        self._inputs: list[Value] = [] if graph is None else list(graph.inputs)
        self._states: list[Value] = [] if graph is None else list(graph.states)
        self._scalars: list[str] = [] if graph is None else list(graph.scalars)
        self._prefix, self._count = prefix, 0

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Add an input and return its name."""
        self._inputs.append(Value(name, tuple(shape), dtype))
        return name

    def state(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Add a state and return its name."""
        self._states.append(Value(name, tuple(shape), dtype))
        return name

    def scalar(self, name: str) -> str:
        """Add a scalar that every run needs and return its name."""
        self._scalars.append(name)
        return name

    def add(
        self,
        problem: Problem | str,
        *reads: str,
        scalars: Mapping[str, Number] | None = None,
        unwanted: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add a node and return the names of its outputs.

        Parameters
        ----------
        problem : Problem or str
            A problem or its text.
        *reads : str
            Values for the arguments that are read (roles ``in`` and ``inout``), in order.
        scalars : mapping of str to float or str, optional
            All of the problem's scalars: numbers, or names of scalars of the graph.
        unwanted : sequence of str, optional
            Names of the problem's outputs that nobody reads; they are called ``_``.

        Raises
        ------
        ProblemError
            If a count or a name does not fit.
        """
        if isinstance(problem, str):
            problem = parse(problem)

        def name(output: str) -> str:
            if output in unwanted:
                return SKIPPED
            self._count += 1
            return f"{self._prefix}{self._count}"

        node, written = new_node(problem, reads, scalars or {}, name)
        self._nodes.append(node)
        return written

    @property
    def count(self) -> int:
        """Number of nodes so far."""
        return len(self._nodes)

    def graph(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        return Graph(tuple(self._nodes), tuple(self._inputs), outputs, tuple(self._states), tuple(self._scalars))
