"""Gradients of graphs: reverse-mode differentiation with the gradient problems that each problem names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from clgraft.core.errors import ProblemError
from clgraft.core.graph.identity import identity
from clgraft.core.graph.structure import SKIPPED, Node, Some, Structure, Value, expect
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import Gradient


def gradient_name(name: str) -> str:
    """Return the name of the gradient of a value."""
    return f"d.{name}"


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
    differentiated = tuple(graph.outputs if outputs is None else outputs)
    for name in (*wrt, *differentiated):
        if name not in graph.values:
            raise ProblemError(f"[graph] got {name!r}, expected one of the values {sorted(graph.values)}")
    expect(len(set(wrt)) == len(wrt), f"{tuple(wrt)} to differentiate by", "each name once")
    tape = _Tape(graph, tuple(wrt), differentiated)
    nodes, results = tape.run()
    inputs, results = (*graph.inputs, *tape.inputs), (*graph.outputs, *results)
    return replace(graph, nodes=nodes, inputs=inputs, outputs=results)


class _Tape:
    """The nodes of the backward pass, collected from the last node to the first."""

    def __init__(self, graph: Structure, wrt: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.source, self.wrt, self.outputs = graph, wrt, outputs
        self.forward = list(graph.nodes)
        self.backward: list[Node] = []
        self.parts: dict[str, list[str]] = {}  # value -> parts of its gradient, to be added
        self.taken = set(graph.values)
        self.results = {name: self.fresh(gradient_name(name)) for name in wrt}
        self.inputs: list[Value] = []
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

    def run(self) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """Return the nodes of both passes, and the names of the gradients."""
        for name in self.outputs:
            value = self.source.values[name]
            given = self.fresh(gradient_name(name) + (".out" if name in self.wrt else ""))
            self.inputs.append(Value(given, value.shape, value.dtype))
            self.parts[name] = [given]
        for i in reversed(range(len(self.forward))):
            self._differentiate(i)
        incoming = {value.name for value in self.inputs}
        found: dict[str, str] = {}  # what is a gradient that was asked for -> its name
        for name, result in self.results.items():
            value = self._sum(name) or self._zeros(name)
            found[self._copy(name, value) if value in incoming else value] = result
        backward = [
            replace(node, arguments=tuple(found.get(value, value) for value in node.arguments))
            for node in self.backward
        ]
        return (*self.forward, *backward), tuple(self.results.values())

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
            of = {symbol: self.forward[writer].reads[0] for symbol in gradient.writes}
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
            text = "y0 = " + " + ".join(f"x{i}" for i in range(len(parts))) + ";"
            result = self.fresh(gradient_name(name))
            self.backward.append(Node(PointwiseProblem(((size,),) * len(parts), text, dtype=dtype), (*parts, result)))
            self.parts[name] = parts = [result]
        return parts[0] if parts else ""

    def _zeros(self, name: str, node: Node | None = None) -> str:
        shape, dtype = self._shape(name, node)
        result = self.fresh(gradient_name(name))
        self.backward.append(Node(PointwiseProblem((shape,), "y0 = 0;", dtype=dtype), (name, result)))
        return result

    def _copy(self, name: str, source: str) -> str:
        shape, dtype = self._shape(name)
        result = self.fresh(gradient_name(name))
        self.backward.append(Node(identity(Value(result, shape, dtype)), (source, result)))
        return result
