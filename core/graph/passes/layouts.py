"""Assigns layouts: values are in channels last around convolutions that multiply best so, with the fewest conversions.

Each problem runs in channels first or, where it can (see `turning`), in channels last; a value is converted where its
readers need another layout than its writer left. Convolutions that want channels last have it. For all others a
smallest cut decides, between what is in channels first, such as the graph's inputs and outputs, and what is in channels
last: it cuts values whose conversions move the fewest bytes.

A graph that is split, into a forward and a backward pass for example, hands values from one part to another. `settled`
decides on the whole graph which of them lie in channels last; the parts then take and leave them so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from clgraft.core.graph.identity import identity
from clgraft.core.graph.passes.cuts import SINK, SOURCE, Network
from clgraft.core.graph.passes.turning import Image, Turned, has_layout, is_seed, multiplies, turned
from clgraft.core.graph.structure import SKIPPED, Fits, Node, Some, Structure, Value, fresh
from clgraft.core.problem import DTYPES, Argument, Problem

LAUNCH_BYTES = 2**22  # what a device moves in the time of a launch, about


def _always(problem: Problem) -> bool:
    return True


@dataclass(frozen=True)
class Preferences:
    """What a device prefers of problems in channels last.

    Attributes
    ----------
    wants : callable
        Whether values are to be in channels last for the sake of a convolution.
    serves : callable
        Whether a convolution or pooling runs without changing the layout inside.
    """

    wants: Fits
    serves: Fits = _always


def settled(graph: Structure, preferences: Preferences, names: Collection[str], count: int) -> dict[str, Image]:
    """Return those of some values that lie in channels last where a graph hands them from one part to another.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    preferences : Preferences
    names : collection of str
        Values that the first part writes and the second one reads.
    count : int
        How many of the nodes are the first part.
    """
    assignment = Assignment(graph, preferences)
    found = {}
    for name in names:
        image = assignment.image(name)
        ways = [assignment.reads_last(i, name) for i in graph.readers[name] if i >= count]
        if graph.values[name].dtype in DTYPES:
            wanted = any(ways)
        else:  # whole numbers are not converted: all that have to do with them agree
            wanted = all(ways) and assignment.reads_last(graph.writers[name], name)
        if image and wanted:
            found[name] = image
    return found


def assign_layouts(graph: Some, preferences: Preferences | None = None) -> Some:
    """Return the graph with values in channels last where a device prefers that; inputs and outputs stay as they are.

    Weights stay as well: convolutions in channels last read transposed copies, which follow from constants where the
    weights do. Transpositions of the graph itself at the borders, from channels last and back to it, need not be
    computed any more.

    Parameters
    ----------
    graph : Graph
    preferences : Preferences, optional
        By default no convolution wants channels last.
    """
    return Assignment(graph, preferences).graph(graph) if preferences else graph


class Assignment:
    """Which problems of a graph are in channels last.

    Parameters
    ----------
    graph : Graph
    preferences : Preferences
    given : mapping of str to Image, optional
        Inputs and outputs that lie in channels last (see `settled`).

    Attributes
    ----------
    conversions : int
        Values that `graph` converts, without weights.
    """

    def __init__(self, graph: Structure, preferences: Preferences, given: Mapping[str, Image] | None = None) -> None:
        self.source, self.preferences, self.conversions = graph, preferences, 0
        ends = {*graph.outputs, *(value.name for value in graph.inputs)}
        self.given = {name: image for name, image in (given or {}).items() if name in ends}
        self._states = {state.name for state in graph.states}
        self._known, self._turned = _images(graph, self.given)
        self._problems: dict[int, Problem] = {}
        for i, node in enumerate(graph.nodes):
            if not self._fits(node, self._turned[i]):
                self._turned[i] = None
        self.last = self._chosen()
        self.weights = self._weights() if self.last else set()

    def _weights(self) -> set[str]:
        """Return the values that are weights, or follow from them element by element."""
        found = {
            name
            for node in self.source.nodes
            if multiplies(node.problem)
            for argument, name in zip(node.problem.arguments(), node.arguments)
            if argument.name in ("w", "dw")
        }
        count = 0
        while count != len(found):
            count = len(found)
            for node, form in zip(self.source.nodes, self._turned):
                own = set(self._images_of(node, form)) if form and not multiplies(node.problem) else set()
                if own & found:
                    found |= own
        return found

    def _fits(self, node: Node, form: Turned | None) -> bool:
        """Return whether a node has a form in channels last of values that all are the images that it expects."""
        if form is None or node.changes:
            return False
        for argument, name in zip(node.problem.arguments(), node.arguments):
            image = form.images.get(argument.name)
            if image is None or image.lies_alike or name == SKIPPED:
                continue
            if self._known.get(name) != image or name in self._states:
                return False
        return True

    def _problem(self, i: int) -> Problem:
        """Return a node's problem in channels last."""
        if i not in self._problems:
            form = self._turned[i]
            assert form is not None
            self._problems[i] = form.build()
        return self._problems[i]

    def _chosen(self) -> set[int]:
        """Return the numbers of the nodes that are in channels last."""
        wants = self.preferences.wants
        anchors = {
            i
            for i, node in enumerate(self.source.nodes)
            if multiplies(node.problem) and self._turned[i] and wants(self._problem(i))
        }
        if not anchors and not self.given:
            return set()
        network = Network()
        vertices = {i: network.vertex() for i in range(len(self.source.nodes)) if i in anchors or self._live(i)}
        forever = 1 + sum(self._cost(name) * 4 for name in self.source.values) * len(self.source.nodes)
        for i, vertex in vertices.items():
            form, node = self._turned[i], self.source.nodes[i]
            assert form is not None
            if i in anchors:
                network.edge(vertex, SINK, forever)
            elif form.is_view:  # in channels first it is a conversion
                network.edge(vertex, SINK, self._cost(self._image_of(node, form)))
            elif has_layout(node.problem) and not self.preferences.serves(self._problem(i)):
                network.edge(SOURCE, vertex, sum(map(self._cost, self._images_of(node, form))))
        for name, image in self._known.items():
            if not image.lies_alike:
                self._enter_value(network, vertices, name, forever)
        side = network.sink_side()
        return {i for i, vertex in vertices.items() if vertex in side}

    def _live(self, i: int) -> bool:
        """Return whether a node has images whose memory depends on the layout."""
        form = self._turned[i]
        return form is not None and bool(self._images_of(self.source.nodes[i], form))

    def _images_of(self, node: Node, form: Turned) -> list[str]:
        """Return the values that are in channels last with a node."""
        pairs = zip(node.problem.arguments(), node.arguments)
        return [name for argument, name in pairs if self._moves(form, argument.name) and name != SKIPPED]

    def _image_of(self, node: Node, form: Turned) -> str:
        (name,) = self._images_of(node, form)
        return name

    @staticmethod
    def _moves(form: Turned, argument: str) -> bool:
        return argument in form.images and not form.images[argument].lies_alike

    def _cost(self, name: str) -> int:
        """Return what a conversion of a value costs, in bytes."""
        return 2 * self.source.values[name].nbytes + LAUNCH_BYTES

    def _enter_value(self, network: Network, vertices: Mapping[int, int], name: str, forever: int) -> None:
        """Enter what it costs that the readers of a value need other layouts than its writer leaves."""
        outside = SINK if name in self.given else SOURCE
        inside = name in self.source.writers
        writer = self._vertex(vertices, self.source.writers[name], name) if inside else outside
        readers = {self._vertex(vertices, i, name) for i in self.source.readers[name]}
        if name in self.source.outputs:
            readers.add(outside)
        readers.discard(writer)
        if not readers:
            return
        # whole numbers, such as places of maxima, are not converted
        cost = self._cost(name) if self.source.values[name].dtype in DTYPES else forever
        if writer != SOURCE:  # from channels last to first, once for all readers
            if SOURCE in readers:
                network.edge(SOURCE, writer, cost)
            else:
                some = network.vertex()
                network.edge(some, writer, cost)
                for reader in readers:
                    network.edge(reader, some, forever)
        some = network.vertex()  # from channels first to last
        network.edge(writer, some, cost)
        for reader in readers - {SOURCE}:
            network.edge(some, reader, forever)

    def _vertex(self, vertices: Mapping[int, int], i: int, name: str) -> int:
        """Return the vertex of a node that reads or writes a value as an image; else that of channels first."""
        return vertices[i] if i in vertices and self._takes_image(i, name) else SOURCE

    def _takes_image(self, i: int, name: str) -> bool:
        """Return whether a value is an image wherever a node that may be in channels last reads or writes it."""
        node, form = self.source.nodes[i], self._turned[i]
        assert form is not None
        pairs = zip(node.problem.arguments(), node.arguments)
        return {self._moves(form, argument.name) for argument, own in pairs if own == name} == {True}

    def reads_last(self, i: int, name: str) -> bool:
        """Return whether a node reads, or writes, a value in channels last."""
        return i in self.last and self._takes_image(i, name)

    def graph(self, graph: Some) -> Some:
        """Return the graph with its problems in their layouts, and conversions in between."""
        return graph.with_nodes(_Writer(self).written()) if self.last or self.given else graph

    def form(self, i: int) -> tuple[Turned, Problem] | None:
        """Return the form and the problem of a node in channels last; None for one that stays as it is."""
        form = self._turned[i]
        return (form, self._problem(i)) if i in self.last and form else None

    def image(self, name: str) -> Image | None:
        """Return the image that a value is, if its memory depends on the layout."""
        image = self._known.get(name)
        return None if image is None or image.lies_alike else image


class _Writer:
    """Writes the nodes of an assignment."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment, self.source = assignment, assignment.source
        self.nodes: list[Node] = []
        self.taken = set(self.source.values)
        # a value and whether it is in channels last -> its name; what is missing is the value's own
        self.names: dict[tuple[str, bool], str] = {(value.name, True): value.name for value in self._given_inputs()}
        self.made = {value.name for value in (*self.source.inputs, *self.source.states)} - assignment.given.keys()

    def _given_inputs(self) -> list[Value]:
        return [value for value in self.source.inputs if value.name in self.assignment.given]

    def written(self) -> list[Node]:
        """Return the nodes."""
        for i, node in enumerate(self.source.nodes):
            found = self.assignment.form(i)
            if found is None:
                self._keep(node)
            elif found[0].is_view:
                self._view(node, found[0])
            else:
                self._turn(node, *found)
        places = {name: self.read(name, name in self.assignment.given) for name in self.source.outputs}
        self._put_outputs(places)
        return self.nodes

    def read(self, name: str, last: bool) -> str:
        """Return the name of a value in a layout, and convert it where it has none."""
        image = self.assignment.image(name)
        key = (name, last and image is not None)
        if key in self.names:
            return self.names[key]
        if image is None or (name in self.made and not last):
            return name
        source = self.names.get((name, not last), name)
        target = self._new(name, last)
        problem = image.turning(last, self.source.values[name].dtype)
        self.nodes.append(Node(problem, (source, target)))
        self.assignment.conversions += name not in self.assignment.weights
        return target

    def _new(self, name: str, last: bool) -> str:
        """Return the name of a value in a layout that is about to be written; it has its own in that of its array."""
        own = last == (name in self.assignment.given)
        target = name if own else fresh(f"{name}.{'last' if last else 'first'}", self.taken)
        self.names[name, last] = target
        return target

    def _keep(self, node: Node) -> None:
        """Write a node as it is."""
        arguments = [self._kept(*pair) for pair in zip(node.problem.arguments(), node.arguments)]
        self.nodes.append(replace(node, arguments=tuple(arguments)))

    def _kept(self, argument: Argument, name: str) -> str:
        """Return the name of a value that a node reads or writes in channels first, or that is no image."""
        if name == SKIPPED or argument.role == "inout":
            return name
        if argument.role == "in":
            return self.read(name, False)
        self.made.add(name)
        return self._new(name, False) if name in self.assignment.given else name

    def _view(self, node: Node, form: Turned) -> None:
        """Note that a transposition between the layouts has nothing to do."""
        x, y = node.named("x"), node.named("y")
        if "y" in form.images:
            self.names[y, True] = self.read(x, False)
        else:
            self.names[y, False] = self.read(x, True)

    def _turn(self, node: Node, form: Turned, problem: Problem) -> None:
        """Write a node in channels last."""
        arguments: list[str] = []
        for argument, name in zip(node.problem.arguments(), node.arguments):
            moves = argument.name in form.images and not form.images[argument.name].lies_alike
            if name == SKIPPED or not moves:
                arguments.append(self._kept(argument, name))
            else:
                arguments.append(self.read(name, True) if argument.role == "in" else self._new(name, True))
        self.nodes.append(replace(node, problem=problem, arguments=tuple(arguments)))

    def _put_outputs(self, places: Mapping[str, str]) -> None:
        """Have the outputs that are views written under their own names, or copied."""
        written = {name for node in self.nodes for name in node.writes if name not in node.changes}
        renamed: dict[str, str] = {}
        for name, place in places.items():
            if name == place:
                continue
            if place in written and place not in places and place not in renamed:
                renamed[place] = name
            else:
                value = replace(self.source.values[name], name=name)
                self.nodes.append(Node(identity(value), (renamed.get(place, place), name)))
        if renamed:
            self.nodes = [
                replace(node, arguments=tuple(renamed.get(name, name) for name in node.arguments))
                for node in self.nodes
            ]


def _images(graph: Structure, given: Mapping[str, Image]) -> tuple[dict[str, Image], list[Turned | None]]:
    """Return what is known to be images, some of which are given, and the form of each node in channels last."""
    arguments = [node.problem.arguments() for node in graph.nodes]
    users: dict[str, list[int]] = {name: [] for name in graph.values}
    for i, node in enumerate(graph.nodes):
        for name in {*node.arguments} - {SKIPPED}:
            users[name].append(i)
    known = dict(given)
    forms: list[Turned | None] = [None] * len(graph.nodes)
    seeds = [i for i, node in enumerate(graph.nodes) if is_seed(node.problem)]
    seeds += sorted({i for name in given for i in users[name]} - {*seeds})
    queue, waiting = deque(seeds), set(seeds)
    while queue:
        i = queue.popleft()
        waiting.discard(i)
        names = {a.name: name for a, name in zip(arguments[i], graph.nodes[i].arguments) if name != SKIPPED}
        given = {argument: known[name] for argument, name in names.items() if name in known}
        forms[i] = turned(graph.nodes[i].problem, given)
        for argument, image in (forms[i].images if forms[i] else {}).items():  # type: ignore[union-attr]
            name = names.get(argument, SKIPPED)
            if name == SKIPPED or name in known or not np.prod(image, dtype=np.int64):
                continue
            known[name] = image
            for user in users[name]:
                if user not in waiting:
                    waiting.add(user)
                    queue.append(user)
    return known, forms
