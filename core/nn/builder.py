"""The builder that the functions of `clgraft.core.nn` write to, and passes of a single function of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clgraft.core.graph import Graph, GraphBuilder, Node, Value, suit_single
from clgraft.core.graph.differentiate import Derived, StatedGradient, derive
from clgraft.core.graph.passes import (
    Image,
    Preferences,
    join_passes,
    mix_passes,
    needed,
    scaled_norms,
    settled,
    switched_on,
)
from clgraft.core.graph.structure import SKIPPED
from clgraft.core.operators.cast import CastProblem
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.operators.update import UpdateProblem
from clgraft.core.problem import SMALL, Problem

Backward = Callable[["Build", "tuple[Tensor | None, ...]", "tuple[bool, ...]"], "Sequence[Tensor | None]"]


@dataclass(frozen=True)
class Tensor:
    """What functions of `clgraft.core.nn` take and return: a `Value` of a graph by its name, as its reader sees it.

    Attributes
    ----------
    name : str
        The graph's value.
    shape : tuple of int
        The graph's value has as many elements, and may have another shape.
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
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


class Build:
    """Adds problems to a graph.

    Parameters
    ----------
    graph : GraphBuilder, optional
        What gets the nodes; in a stated gradient, the nodes of the backward pass.
    training : bool
        Whether the pass is one of training.
    overwritten : str
        The input whose memory the first output takes, if any: where both serve, gradients read that output.

    Attributes
    ----------
    constants : dict of str to numpy.ndarray
        Inputs of the graph that never change.
    loss_scale : str
        The graph's scalar that multiplies stated gradients of losses which ignore what comes in; empty for none.
    """

    def __init__(self, graph: Any = None, *, training: bool = False, overwritten: str = "") -> None:
        self.graph = GraphBuilder() if graph is None else graph
        self.training, self.overwritten = training, overwritten
        self.loss_scale = ""
        self.constants: dict[str, np.ndarray] = {}
        self._stated: list[StatedGradient] = []
        self._after: dict[int, tuple[str, ...]] = {}  # nodes that run after the backward pass -> what they belong to
        self._constant_gradients: set[str] = set()

    # values

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Add an input."""
        return Tensor(self.graph.input(name, shape, dtype), tuple(shape), dtype)

    def state(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Add a state."""
        return Tensor(self.graph.state(name, shape, dtype), tuple(shape), dtype)

    def filled(self, shape: Sequence[int], value: float, dtype: str = "float32") -> Tensor:
        """Return a constant of one number."""
        shape = tuple(shape)
        for name, known in self.constants.items():
            if known.dtype == dtype and known.size == math.prod(shape) and not (known != value).any():
                return Tensor(name, shape, dtype)
        name = f"filled{len(self.constants)}"
        self.constants[name] = np.full(shape, value, dtype)
        return self.input(name, shape, dtype)

    def constant(self, array: np.ndarray) -> Tensor:
        """Return a constant; equal ones are stored once."""
        dtype = str(array.dtype)
        for name, known in self.constants.items():
            if known.dtype == array.dtype and np.array_equal(known, array):
                return Tensor(name, array.shape, dtype)
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(array)
        return self.input(name, array.shape, dtype)

    # problems

    def add(
        self,
        problem: Problem,
        *tensors: Tensor,
        scalars: Mapping[str, float | str] | None = None,
        unwanted: Sequence[str] = (),
    ) -> tuple[Tensor, ...]:
        """Add a problem that reads some values, and return its outputs.

        Parameters
        ----------
        problem : Problem
        *tensors : Tensor
            Values for the arguments that are read (roles ``in`` and ``inout``), in order.
        scalars : mapping of str to float or str, optional
            All of the problem's scalars.
        unwanted : sequence of str, optional
            Names of outputs that nobody reads.
        """
        names = self.graph.add(problem, *(tensor.name for tensor in tensors), scalars=scalars, unwanted=unwanted)
        written = (argument for argument in problem.arguments() if argument.role == "out")
        return tuple(Tensor(name, argument.shape, argument.dtype) for name, argument in zip(names, written))

    def pointwise(
        self,
        text: str,
        tensors: Sequence[Tensor],
        scalars: Mapping[str, float | str] | None = None,
        reduce: Sequence[Reduction | None] = (),
        alpha: str = "",
        unwanted: Sequence[str] = (),
        single: Sequence[str] = (),
    ) -> tuple[Tensor, ...]:
        """Add an expression of x0, x1, ..., which broadcast; return y0, y1, ...

        They have one type, or next to one of 16 bits some are float32, and so are the outputs that `single` names.
        """
        shapes = tuple(tensor.shape for tensor in tensors)
        dtype = next((tensor.dtype for tensor in tensors if tensor.dtype in SMALL), tensors[0].dtype)
        wide: tuple[str, ...] = ()
        if dtype in SMALL:
            wide = (*(f"x{place}" for place, one in enumerate(tensors) if one.dtype == "float32"), *single)
        numbers = tuple(scalars or {})
        problem = PointwiseProblem(shapes, text, tuple(reduce), numbers, alpha, dtype=dtype, float32_arguments=wide)
        return self.add(problem, *tensors, scalars=scalars, unwanted=unwanted)

    def update(
        self,
        text: str,
        reads: Sequence[Tensor],
        states: Sequence[Tensor],
        scalars: Mapping[str, float | str] | None = None,
    ) -> None:
        """Add an expression of x0, x1, ..., reads and then states, that changes the states to y0, y1, ... in order."""
        tensors = (*reads, *states)
        shapes = tuple(tensor.shape for tensor in tensors)
        step = PointwiseProblem(shapes, text, parameters=tuple(scalars or {}), dtype=tensors[0].dtype)
        self.add(UpdateProblem(step), *tensors, scalars=scalars)

    def zeros(self, like: Tensor) -> Tensor:
        """Return zeros in the shape of a value."""
        return self.add(PointwiseProblem.zeros(like.shape, like.dtype), like)[0]

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the same elements in another shape."""
        return replace(x, shape=tuple(shape))

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Return the elements in another type."""
        if x.dtype == dtype:
            return x
        (y,) = self.add(CastProblem(x.size, x.dtype, dtype), x)
        return replace(y, shape=x.shape)

    # gradients

    @property
    def here(self) -> int:
        """The place after the last node, where `state_gradient` may begin."""
        return int(getattr(self.graph, "count", 0))

    def state_gradient(
        self, first: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], backward: Backward
    ) -> None:
        """State the gradient of what was added since a place, in place of the one that would be derived.

        Parameters
        ----------
        first : int
            What `here` was.
        inputs, outputs : sequence of Tensor
            Whose gradients are computed, and given.
        backward : callable
            Gets a builder, the gradients of the outputs, None where nothing depends on them, and for each input whether
            its gradient is wanted; returns the inputs' gradients, or None for one that is not wanted or zero.
        """
        if not isinstance(self.graph, GraphBuilder) or self.here == first:  # gradients have none themselves
            return

        def names(nodes: Any, coming: tuple[str, ...], wanted: tuple[bool, ...]) -> Sequence[str]:
            given = tuple(replace(y, name=name) if name else None for y, name in zip(outputs, coming))
            build = Build(nodes, training=self.training, overwritten=self.overwritten)
            build.loss_scale = self.loss_scale
            found = backward(build, given, wanted)
            return tuple("" if one is None else one.name for one in found)

        read, written = (tuple(tensor.name for tensor in one) for one in (inputs, outputs))
        self._stated.append(StatedGradient(first, self.here, read, written, names))

    def without_gradient(self, x: Tensor) -> Tensor:
        """Return a value through which no gradient flows: neither as an output nor from what reads it."""
        self._constant_gradients.add(x.name)
        return x

    @contextmanager
    def after_backward(self, *tensors: Tensor) -> Iterator[None]:
        """Have what is added in the context run after the backward pass, if there is one.

        Of several contexts the last comes first, as in a backward pass.

        Parameters
        ----------
        *tensors : Tensor
            What it belongs to: it is left out where no gradient flows to any of them (see `Passes.leading_to`).
        """
        first = self.here
        yield
        owners = tuple(tensor.name for tensor in tensors)
        self._after = {**dict.fromkeys(range(first, self.here), owners), **self._after}

    # passes

    def passes(
        self, outputs: Sequence[Tensor], wrt: Sequence[str], *, zeros: bool = False, switches: str | None = None
    ) -> Passes:
        """Return the passes of what was built.

        Parameters
        ----------
        outputs : sequence of Tensor
        wrt : sequence of str
            Inputs whose gradients are wanted; without any there is no backward pass.
        zeros : bool
            Whether a gradient that does not exist is computed as zeros.
        switches : str, optional
            Of the graph's passes (see `switched_on`): batch norms take the scales after them before that.
        """
        whole = self.graph.graph(*(tensor.name for tensor in outputs))
        late = list(self._after)
        stated, scaled, norms = self._with_scales(whole, "scales" in switched_on(switches))
        gone = {*self._after, *scaled}
        graph = whole.with_nodes(norms.get(i, node) for i, node in enumerate(whole.nodes) if i not in gone)
        flowing = tuple(name for name in whole.outputs if name not in self._constant_gradients)
        if not wrt:
            found = Derived(graph.nodes, (), {}, {})
        else:
            stated = [_moved(one, gone) for one in stated]
            found = derive(graph, wrt, flowing, stated, self._constant_gradients, zeros=zeros)
            found = _suited(graph, found, self.training)
        return Passes(
            tuple(outputs),
            found.forward,
            (*found.backward, *(whole.nodes[i] for i in late)),
            found.incoming,
            found.found,
            tuple(self._after[i] for i in late),
            (*whole.inputs, *whole.states),
        )

    def _with_scales(self, graph: Graph, wanted: bool) -> tuple[list[StatedGradient], set[int], dict[int, Node]]:
        """Return what changes where batch norms take the scales after them (see `scaled_norms`).

        Returns
        -------
        list of StatedGradient
            Those that are left: the norm has a scale's.
        set of int
            Nodes that go.
        dict of int to Node
            The norms, by their numbers.
        """
        stated, gone, norms = list(self._stated), set(), {}
        for scale, (norm, node) in (scaled_norms(graph, self.constants) if wanted else {}).items():
            own = [one for one in stated if (one.first, one.last) == (scale, scale + 1)]
            if any(one.first <= i < one.last for one in stated if one not in own for i in (norm, scale)):
                continue
            stated = [one for one in stated if one not in own]
            gone.add(scale)
            norms[norm] = node
        return stated, gone, norms


def _moved(one: StatedGradient, gone: Collection[int]) -> StatedGradient:
    """Return a stated gradient with the numbers that its nodes have without those that are gone."""
    before = (sum(i < place for i in gone) for place in (one.first, one.last))
    first, last = (place - count for place, count in zip((one.first, one.last), before))
    return replace(one, first=first, last=last)


@dataclass(frozen=True)
class Passes:
    """A function for given shapes: what it runs.

    Attributes
    ----------
    outputs : tuple of Tensor
    forward, backward : tuple of Node
        The backward nodes read values of the forward ones.
    incoming : mapping of str to Value
        For each output with a gradient, by its name, the value that the backward pass reads it from.
    found : mapping of str to str
        For each input whose gradient was asked for, the value that holds it; empty if it is zero.
    late : tuple of tuple of str
        For each of the last backward nodes, which only follow the gradients, the values that it belongs to.
    given : tuple of Value
        Inputs and states.
    """

    outputs: tuple[Tensor, ...]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    incoming: Mapping[str, Value]
    found: Mapping[str, str]
    late: tuple[tuple[str, ...], ...] = ()
    given: tuple[Value, ...] = ()

    def leading_to(self, wanted: Collection[str]) -> tuple[Node, ...]:
        """Return the backward nodes without those that belong to values which follow from none of the wanted inputs.

        Gradients that nobody asks for are still among them: `drop_dead` drops those.
        """
        following = set(wanted)
        for node in self.forward:
            if following & set(node.reads):
                following |= set(node.writes)
        count = len(self.backward) - len(self.late)
        late = zip(self.backward[count:], self.late)
        return (*self.backward[:count], *(node for node, owners in late if following & set(owners)))

    def graph(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Graph:
        """Return those of some nodes that outputs need as a graph, which takes what they read of other nodes."""
        return needed(self._whole(nodes, outputs), outputs)

    def mixed(self, dtype: str, outputs: Iterable[str] = ()) -> Passes:
        """Return passes with products in a type of 16 bits; gradients and outputs, also further ones, stay float32."""
        forward, backward = mix_passes(self._both(outputs), dtype, len(self.forward), len(self.late))
        return replace(self, forward=forward, backward=backward)

    def joined(self, outputs: Iterable[str] = (), switches: str | None = None) -> Passes:
        """Return passes after the graph passes that join nodes of both; outputs, also further ones, are still computed.

        Where each pass is compiled by itself, such a graph pass would see one half of what it joins: an activation and
        its gradient become parts of the batch norm in front of it and of the norm's gradient.
        """
        forward, backward = join_passes(self._both(outputs), len(self.forward), switches)
        return replace(self, forward=forward, backward=backward)

    def settled(self, kept: Collection[str], preferences: Preferences | None) -> dict[str, Image]:
        """Return which of the values that backward nodes read of forward ones lie in channels last."""
        return settled(self._both(), preferences, kept, len(self.forward)) if kept and preferences else {}

    def _both(self, outputs: Iterable[str] = ()) -> Graph:
        """Return the graph of both passes, with gradients, outputs and further ones as outputs."""
        nodes = (*self.forward, *self.backward)
        made = {name for node in nodes for name in node.writes}
        names = dict.fromkeys((*(tensor.name for tensor in self.outputs), *outputs, *self.found.values()))
        return self._whole(nodes, [name for name in names if name in made])

    def _whole(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Graph:
        changed = {name for node in nodes for name in node.changes}
        made = {name for node in nodes for name in node.writes}
        known = list(self.known())
        return Graph(
            tuple(nodes),
            tuple(value for value in known if value.name not in made),
            tuple(outputs),
            tuple(value for value in known if value.name in changed),
            tuple(dict.fromkeys(one for node in nodes for one in node.scalars if isinstance(one, str))),
        )

    def known(self) -> Iterator[Value]:
        """Yield the values that nodes may read of other nodes."""
        yield from self.given
        yield from self.incoming.values()
        for node in self.forward:
            for argument, name in zip(node.problem.arguments(), node.arguments):
                if argument.role == "out" and name != SKIPPED:
                    yield Value(name, argument.shape, argument.dtype)


def _suited(graph: Graph, found: Derived, training: bool) -> Derived:
    """Return passes with the problems that suit them when they run node by node."""
    inputs = (*graph.inputs, *found.incoming.values())
    both = replace(graph, nodes=(*found.forward, *found.backward), inputs=inputs)
    nodes = suit_single(both, training).nodes
    count = len(found.forward)
    return replace(found, forward=nodes[:count], backward=nodes[count:])
