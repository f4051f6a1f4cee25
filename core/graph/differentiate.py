"""Gradients of graphs: reverse-mode differentiation with the gradient problems that each problem names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from clgraft.core.errors import ProblemError
from clgraft.core.graph.identity import identity
from clgraft.core.graph.structure import SKIPPED, Node, Number, Some, Structure, Value, expect, new_node
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import Gradient, Problem


def gradient_name(name: str) -> str:
    """Return the name of the gradient of a value."""
    return f"d.{name}"


@dataclass(frozen=True)
class StatedGradient:
    """Some nodes that follow each other, whose gradient is stated and not derived node by node.

    Attributes
    ----------
    first, last : int
        Numbers of the first node and of the one after the last.
    inputs, outputs : tuple of str
        What the nodes read, and what others may read of them.
    backward : callable
        Gets what adds nodes (see `BackwardNodes.add`), for each output the name of its gradient, which is empty where
        nothing depends on it, and for each input whether its gradient is wanted; returns for each input the name of
        its gradient, or an empty one.
    """

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    backward: Callable[[BackwardNodes, tuple[str, ...], tuple[bool, ...]], Sequence[str]]


@dataclass(frozen=True)
class Derived:
    """A forward pass and the backward pass that belongs to it.

    Attributes
    ----------
    forward, backward : tuple of Node
        The forward nodes name every value that the backward ones read.
    incoming : mapping of str to Value
        For each differentiated output, the gradient that comes in.
    found : mapping of str to str
        For each value to differentiate by, the name of its gradient; empty if it has none.
    """

    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    incoming: Mapping[str, Value]
    found: Mapping[str, str]


def gradients(graph: Some, wrt: Sequence[str], outputs: Sequence[str] | None = None) -> Some:
    """Return a graph that computes gradients of outputs in addition to the outputs themselves.

    For each differentiated output y it has a new input ``d.y``, the gradient that comes in, and for each x in `wrt` a
    new output ``d.x``: the sum of ``d.y`` times the derivative of y by x over all outputs. Where y is one of `wrt`
    itself, the new input is ``d.y.out``: both gradients are there.

    Parameters
    ----------
    graph : Graph
    wrt : sequence of str
        Names of inputs or other values.
    outputs : sequence of str, optional
        The differentiated outputs; by default all of the graph's.

    Raises
    ------
    ProblemError
        If a name is unknown, or a problem on the way has no gradient problems.
    """
    found = derive(graph, wrt, outputs, zeros=True)
    inputs, results = (*graph.inputs, *found.incoming.values()), (*graph.outputs, *found.found.values())
    return replace(graph, nodes=(*found.forward, *found.backward), inputs=inputs, outputs=results)


def derive(
    graph: Structure,
    wrt: Sequence[str],
    outputs: Sequence[str] | None = None,
    stated: Sequence[StatedGradient] = (),
    *,
    zeros: bool = False,
) -> Derived:
    """Return both passes of a graph.

    Parameters
    ----------
    graph : Graph
    wrt, outputs : sequence of str
        As of `gradients`.
    stated : sequence of StatedGradient, optional
        Of nodes that lie in each other, the outer ones come later.
    zeros : bool
        Whether a gradient that does not exist is computed as zeros.

    Raises
    ------
    ProblemError
        As of `gradients`.
    """
    differentiated = tuple(graph.outputs if outputs is None else outputs)
    for name in (*wrt, *differentiated):
        if name not in graph.values:
            raise ProblemError(f"[graph] got {name!r}, expected one of the values {sorted(graph.values)}")
    expect(len(set(wrt)) == len(wrt), f"{tuple(wrt)} to differentiate by", "each name once")
    return BackwardNodes(graph, tuple(wrt), differentiated, stated).run(zeros)


class BackwardNodes:
    """The nodes of the backward pass, collected from the last node to the first."""

    def __init__(
        self, graph: Structure, wrt: tuple[str, ...], outputs: tuple[str, ...], stated: Sequence[StatedGradient]
    ) -> None:
        self.source, self.wrt, self.outputs = graph, wrt, outputs
        self.stated = {one.last: one for one in stated}
        self.forward = list(graph.nodes)
        self.backward: list[Node] = []
        self.parts: dict[str, list[str]] = {}  # value -> parts of its gradient, to be added
        self.taken = set(graph.values)
        self.results = {name: self.fresh(gradient_name(name)) for name in wrt}
        self.inputs: dict[str, Value] = {}
        self.needed = self._needed()

    def _needed(self) -> set[str]:
        """Return the values that depend on one of `wrt`."""
        needed = set(self.wrt)
        for node in self.source.nodes:
            if needed & set(node.reads):
                needed |= set(node.writes)
        return needed

    def fresh(self, name: str) -> str:
        """Return a name that no value has."""
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}.{number}"
        self.taken.add(found)
        return found

    def add(
        self,
        problem: Problem,
        *reads: str,
        scalars: Mapping[str, Number] | None = None,
        unwanted: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add a node of a stated gradient, and return the names of its outputs, ``_`` for the unwanted ones."""

        def name(output: str) -> str:
            return SKIPPED if output in unwanted else self.fresh(gradient_name(f"{len(self.backward)}.{output}"))

        node, written = new_node(problem, reads, scalars or {}, name)
        self.backward.append(node)
        return written

    def run(self, zeros: bool) -> Derived:
        """Return both passes."""
        for name in self.outputs:
            value = self.source.values[name]
            given = self.fresh(gradient_name(name) + (".out" if name in self.wrt else ""))
            self.inputs[name] = Value(given, value.shape, value.dtype)
            self.parts[name] = [given]
        i = len(self.forward)
        while i:
            if i in self.stated:
                self._take_stated(self.stated[i])
                i = self.stated[i].first
                continue
            i -= 1
            self._differentiate(i)
        known = {value.name for value in self.inputs.values()}
        found: dict[str, str] = {}  # what is a gradient that was asked for -> its name
        for name, result in self.results.items():
            value = self._sum(name)
            if not value and not zeros:
                self.results[name] = ""
                continue
            value = value or self._zeros(name)
            found[self._copy(name, value) if value in known or value in found else value] = result
        backward = [
            replace(node, arguments=tuple(found.get(value, value) for value in node.arguments))
            for node in self.backward
        ]
        return Derived(tuple(self.forward), tuple(backward), self.inputs, self.results)

    def _take_stated(self, own: StatedGradient) -> None:
        """Add the stated gradient of some nodes."""
        wanted = tuple(name in self.needed for name in own.inputs)
        coming = tuple(self._sum(name) for name in own.outputs)
        if not any(coming) or not any(wanted):
            return
        for name, given, is_wanted in zip(own.inputs, own.backward(self, coming, wanted), wanted):
            if given and is_wanted:
                self.parts.setdefault(name, []).append(given)

    def _differentiate(self, i: int) -> None:
        node = self.forward[i]
        if node.changes or not any(self.parts.get(name) for name in node.writes):
            return
        if not self.needed & set(node.reads):
            return
        by_argument = {a.name: name for a, name in zip(node.problem.arguments(), node.arguments)}
        outputs = {a.name for a in node.problem.arguments() if a.role == "out"}
        numbers = dict(zip(node.problem.scalars(), node.scalars))
        known: dict[str, str] = {}  # gradients of outputs, and temporaries, by their symbolic names
        wanted = self._wanted(node, by_argument)
        for gradient in wanted:
            targets = self._targets(gradient, i, by_argument)
            names = []
            for argument in gradient.problem.arguments():
                symbol = gradient.arguments[argument.name]
                if argument.role == "out":
                    named = symbol in targets or symbol.startswith("_")
                    names.append(self.fresh(gradient_name(targets.get(symbol, f"{i}{symbol}"))) if named else SKIPPED)
                    if symbol.startswith("_"):
                        known[symbol] = names[-1]
                elif symbol in by_argument:
                    names.append(self._kept(i, symbol, by_argument))
                else:
                    if symbol not in known and symbol[:1] == "d" and symbol[1:] in outputs:
                        known[symbol] = self._incoming(i, symbol[1:], by_argument)
                    if symbol not in known:
                        raise ProblemError(f"[graph] got {symbol!r} in a gradient of {node.problem}, expected a value")
                    names.append(known[symbol])
            values = (gradient.scalars[name] for name in gradient.problem.scalars())
            scalars = tuple(numbers[value] if isinstance(value, str) else value for value in values)
            self.backward.append(Node(gradient.problem, tuple(names), scalars))
            for argument, name in zip(gradient.problem.arguments(), names):
                symbol = gradient.arguments[argument.name]
                if argument.role == "out" and symbol in targets:
                    self.parts.setdefault(targets[symbol], []).append(name)

    def _wanted(self, node: Node, by_argument: dict[str, str]) -> list[Gradient]:
        """Return the gradients of a node that lead to a value that is asked for, in the order in which they run."""
        wanted: list[Gradient] = []
        needed: set[str] = set()
        for gradient in reversed(node.problem.gradients()):
            leads = gradient.through is not None or any(
                symbol in needed or by_argument.get(symbol[1:]) in self.needed for symbol in gradient.writes
            )
            if leads:
                wanted.append(gradient)
                needed |= {symbol for symbol in gradient.reads if symbol.startswith("_")}
        return wanted[::-1]

    def _targets(self, gradient: Gradient, i: int, by_argument: dict[str, str]) -> dict[str, str]:
        """Return the values whose gradients a gradient problem computes, by symbolic name."""
        node = self.forward[i]
        if gradient.through is None:
            of = {symbol: by_argument[symbol[1:]] for symbol in gradient.writes if symbol[1:] in by_argument}
        else:
            writer = self.source.writers.get(node.reads[0])
            if writer is None or self.forward[writer].problem != gradient.through:
                raise ProblemError(
                    f"[graph] got {node.problem} without {gradient.through} before it, expected that one"
                )
            of = {symbol: self.forward[writer].reads[0] for symbol in gradient.writes if symbol[:1] != "_"}
        return {symbol: name for symbol, name in of.items() if name in self.needed}

    def _kept(self, i: int, argument: str, by_argument: dict[str, str]) -> str:
        """Return the value of a forward argument, which gets a name if nobody wanted it before."""
        name = by_argument[argument]
        if name == SKIPPED:
            name = by_argument[argument] = self.fresh(f"kept{i}.{argument}")
            node = self.forward[i]
            places = [a.name for a in node.problem.arguments()]
            arguments = list(node.arguments)
            arguments[places.index(argument)] = name
            self.forward[i] = replace(node, arguments=tuple(arguments))
        return name

    def _incoming(self, i: int, argument: str, by_argument: dict[str, str]) -> str:
        """Return the gradient of a forward output; zeros if nothing depends on it."""
        name = by_argument[argument]
        if name == SKIPPED:
            name = self._kept(i, argument, by_argument)
        return self._sum(name) or self._zeros(name, self.forward[i])

    def _shape(self, name: str, node: Node | None = None) -> tuple[tuple[int, ...], str]:
        if name in self.source.values:
            value = self.source.values[name]
            return value.shape, value.dtype
        assert node is not None
        argument = next(a for a, given in zip(node.problem.arguments(), node.arguments) if given == name)
        return argument.shape, argument.dtype

    def _sum(self, name: str) -> str:
        """Return the gradient of a value as one value; empty if it has none."""
        parts = self.parts.get(name, [])
        if len(parts) > 1:
            shape, dtype = self._shape(name)
            size = math.prod(shape)
            result = self.fresh(gradient_name(name))
            self.backward.append(Node(PointwiseProblem.sum_of((size,), len(parts), dtype), (*parts, result)))
            self.parts[name] = parts = [result]
        return parts[0] if parts else ""

    def _zeros(self, name: str, node: Node | None = None) -> str:
        shape, dtype = self._shape(name, node)
        result = self.fresh(gradient_name(name))
        self.backward.append(Node(PointwiseProblem.zeros(shape, dtype), (name, result)))
        return result

    def _copy(self, name: str, source: str) -> str:
        shape, dtype = self._shape(name)
        result = self.fresh(gradient_name(name))
        self.backward.append(Node(identity(Value(result, shape, dtype)), (source, result)))
        return result
