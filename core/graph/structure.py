"""What a graph is: problems that read and write named values, in the order in which they run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, Union

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.problem import DTYPES, Argument, Problem, reads_as_number

NAME = re.compile(r"[A-Za-z_][\w.]*")
VALUE_DTYPES = (*DTYPES, "int32", "uint8")  # whole numbers are keys of random numbers, indices and counts
SKIPPED = "_"  # the name of an output that nobody wants
RESERVED = (SKIPPED, "self", "scalars")  # what else a run is called with
Number = Union[float, str]  # a scalar's value, or the name of one of the graph's scalars
Fits = Callable[[Problem], bool]  # whether a device serves a problem of several parts as well as the parts


@dataclass(frozen=True)
class Value:
    """A named array of a graph.

    Attributes
    ----------
    shape : tuple of int
        As its first user sees it; other problems may see another shape with as many elements.
    dtype : str
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Node:
    """A problem whose arguments are values of a graph.

    Attributes
    ----------
    problem : Problem
    arguments : tuple of str
        Names of values, in the order of the problem's arguments; ``_`` for an output that nobody wants. An argument
        with the role ``inout`` is a state of the graph, which the node changes in place.
    scalars : tuple of float or str
        The values of the problem's scalars, in their order; a string names a scalar of the graph.
    """

    problem: Problem
    arguments: tuple[str, ...]
    scalars: tuple[Number, ...] = ()

    def _with_role(self, *roles: str) -> tuple[str, ...]:
        pairs = zip(self.problem.arguments(), self.arguments)
        return tuple(name for argument, name in pairs if argument.role in roles and name != SKIPPED)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Values that the node reads."""
        return self._with_role("in", "inout")

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Values that the node writes."""
        return self._with_role("out", "inout")

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """States that the node changes in place."""
        return self._with_role("inout")

    @property
    def values(self) -> dict[str, str]:
        """The values that the arguments of the problem stand for, by the arguments' names."""
        return {argument.name: name for argument, name in zip(self.problem.arguments(), self.arguments)}

    def named(self, argument: str) -> str:
        """Return the value that an argument of the problem stands for."""
        for found, name in zip(self.problem.arguments(), self.arguments):
            if found.name == argument:
                return name
        raise ProblemError(f"[graph] got argument {argument!r} of {self.problem}, expected one of its own")


def new_node(
    problem: Problem, reads: Sequence[str], scalars: Mapping[str, Number], name: Callable[[str], str]
) -> tuple[Node, tuple[str, ...]]:
    """Return a node that reads some values, and the names of its outputs.

    Parameters
    ----------
    problem : Problem
    reads : sequence of str
        Values for the arguments with the roles ``in`` and ``inout``, in order.
    scalars : mapping of str to float or str
        All of the problem's scalars.
    name : callable
        Gets the name of each output of the problem; returns that of the new value, or ``_``.

    Raises
    ------
    ProblemError
        If a count or a name does not fit.
    """
    arguments = problem.arguments()
    wanted = sum(argument.role != "out" for argument in arguments)
    if len(reads) != wanted:  # the problem's text takes long
        expect(False, f"{len(reads)} values to read for {problem}", f"{wanted}")
    if set(scalars) != set(problem.scalars()):
        expect(False, f"scalars {sorted(scalars)} for {problem}", f"{problem.scalars()}")
    left, names, written = iter(reads), [], []
    for argument in arguments:
        names.append(name(argument.name) if argument.role == "out" else next(left))
        if argument.role == "out":
            written.append(names[-1])
    return Node(problem, tuple(names), tuple(scalars[one] for one in problem.scalars())), tuple(written)


def expect(good: bool, got: str, expected: str) -> None:
    """Raise `ProblemError` unless `good`."""
    if not good:
        raise ProblemError(f"[graph] got {got}, expected {expected}")


def fresh(name: str, taken: set[str]) -> str:
    """Return a name for a new value that is not taken, and take it."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _refuse(node: Node, argument: Argument, name: str, value: Value | None) -> None:
    """Raise `ProblemError` for a value that an argument cannot read."""
    text = f"{argument.name} of {node.problem}"
    if value is None:
        expect(False, f"{name!r} for {text}", "a value that was defined before")
    elif (value.size, value.dtype) == (argument.size, argument.dtype):
        expect(False, f"{name!r} for {text}", "a state")
    else:
        got = f"{name} of shape {value.shape} and {value.dtype} for {text}"
        expect(False, got, f"{argument.shape} and {argument.dtype}")


Some = TypeVar("Some", bound="Structure")


@dataclass(frozen=True)
class Structure:
    """The parts of a `Graph`, and what follows from them.

    Every value is an input, a state, or an output of exactly one node that comes before all its readers. States are
    changed in place by nodes with ``inout`` arguments; a node reads what the nodes before it left.

    Parameters
    ----------
    nodes : tuple of Node
    inputs : tuple of Value
    outputs : tuple of str
        Names of values that a run hands out. An input may be an output as well.
    states : tuple of Value, optional
    scalars : tuple of str, optional
        Numbers that every run needs.

    Raises
    ------
    ProblemError
        If a name is invalid or unknown, a value is written twice, or sizes or dtypes differ.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    states: tuple[Value, ...] = ()
    scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("nodes", "inputs", "outputs", "states", "scalars"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        values = self.values
        for name in (*values, *self.scalars):
            if not NAME.fullmatch(name) or name in RESERVED:
                expect(False, f"the name {name!r}", f"letters, digits, _ and ., and none of {RESERVED}")
        for name in self.scalars:
            expect(not reads_as_number(name), f"the scalar name {name!r}", "a name that is no number")
        expect(len(set(self.scalars)) == len(self.scalars), f"scalars {self.scalars}", "each name once")
        states = {state.name for state in self.states}
        for name in self.outputs:
            if name not in values:
                expect(False, f"output {name!r}", f"one of the values {sorted(values)}")
            expect(name not in states, f"output {name!r}", "no state")
        expect(len(set(self.outputs)) == len(self.outputs), f"outputs {self.outputs}", "each name once")

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """All values by name, in the order of their definition."""
        found: dict[str, Value] = {}

        def define(value: Value) -> None:
            if value.name in found or value.dtype not in VALUE_DTYPES:
                expect(value.name not in found, f"a second definition of {value.name!r}", "one")
                expect(False, f"dtype {value.dtype!r} of {value.name}", f"one of {VALUE_DTYPES}")
            found[value.name] = value

        for value in (*self.inputs, *self.states):
            define(value)
        states = {state.name for state in self.states}
        for node in self.nodes:
            arguments = node.problem.arguments()
            self._check_counts(node, arguments)
            for argument, name in zip(arguments, node.arguments):
                if argument.role == "out":
                    if name != SKIPPED:
                        define(Value(name, argument.shape, argument.dtype))
                    continue
                read = found.get(name)
                fits = read is not None and (read.size, read.dtype) == (argument.size, argument.dtype)
                if not fits or not (argument.role == "in" or name in states):
                    _refuse(node, argument, name, read)
        return found

    def _check_counts(self, node: Node, arguments: Sequence[Argument]) -> None:
        """Raise `ProblemError` if a node has not as many values and scalars as its problem, or unknown scalars."""
        if len(arguments) != len(node.arguments):
            expect(False, f"{len(node.arguments)} values for {node.problem}", f"{len(arguments)}")
        names = node.problem.scalars()
        if len(names) != len(node.scalars):
            expect(False, f"{len(node.scalars)} scalars for {node.problem}", f"{names}")
        for number in node.scalars:
            if isinstance(number, str) and number not in self.scalars:
                expect(False, f"scalar {number!r} for {node.problem}", f"a number or one of {self.scalars}")

    @cached_property
    def writers(self) -> Mapping[str, int]:
        """The number of the node that writes each value; states and inputs are left out."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.writes if name not in node.changes}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the nodes that read each value, in order."""
        found: dict[str, list[int]] = {name: [] for name in self.values}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.reads):
                found[name].append(i)
        return {name: tuple(numbers) for name, numbers in found.items()}

    @cached_property
    def changing_end(self) -> int:
        """The number of the first of those nodes at the end that all change states, such as updates of parameters."""
        number = len(self.nodes)
        while number and self.nodes[number - 1].changes:
            number -= 1
        return number

    def changes_between(self, names: Iterable[str], first: int, last: int) -> bool:
        """Return whether a node from one on, and before another one, changes a state of some names."""
        read = {state.name for state in self.states} & set(names)
        return bool(read) and any(read & set(node.changes) for node in self.nodes[first:last])

    def with_nodes(self: Some, nodes: Iterable[Node]) -> Some:
        """Return the same graph with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def with_outputs(self: Some, outputs: Iterable[str]) -> Some:
        """Return the same graph with other outputs."""
        return replace(self, outputs=tuple(outputs))
