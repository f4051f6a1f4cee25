"""The layers of a region as one graph, and the arrays of Caffe's that its values lie in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from clgraft.caffe_layers.prototxt.marks import PHASES
from clgraft.caffe_layers.regions.memory import buffer
from clgraft.core.graph import Node
from clgraft.core.nn import dropout
from clgraft.core.nn.builder import Build, Passes, Tensor

Fetch = Callable[[], np.ndarray]
ALL = -1  # in the place of a bottom: all bottoms of a layer


class RegionGraph:
    """What the layers of a region compute, for the shapes that they have.

    Parameters
    ----------
    members : sequence of Member
    sources : sequence of sequence of (int, int) or None
        For each layer and bottom, the layer and the top that it comes from; None from outside.
    cuts : collection of (int, int)
        Layers, and their bottoms or `ALL`, through which no gradient flows.

    Attributes
    ----------
    build : Build
    edges : list of list of Tensor
        What each layer reads as its bottoms. Those from outside differ, so that each has a gradient of its own.
    blobs : list of list of str
        The values of each layer's blobs; layers that share one and learn it read the same value.
    written : list of list of Tensor
        What the host reads of each layer: its results, and tops that are not hidden.
    arrays : dict of str to callable
        What returns the array of each value that the host has, in a run.
    diffs : dict of str to callable
        The same for gradients: of bottoms from outside, of tops that are not hidden, and of blobs.
    changing : set of str
        Values whose arrays may have changed before the backward pass.
    overlapping : set of str
        Values that are written to the memory of an input, and inputs whose gradient is written to that of an output's.
    """

    def __init__(self, members: Sequence[Any], sources: Sequence[Any], cuts: Collection[tuple[int, int]]) -> None:
        self.build = Build(training=members[0].layer.phase == PHASES.index("TRAIN"))
        self.edges: list[list[Tensor]] = []
        self.blobs: list[list[str]] = []
        self.written: list[list[Tensor]] = []
        self.arrays: dict[str, Fetch] = {}
        self.diffs: dict[str, Fetch] = {}
        self.changing: set[str] = set()
        self.overlapping: set[str] = set()
        self._members, self._sources, self._cuts = members, sources, cuts
        self._aliases: dict[str, str] = {}  # further names of values, which tell their readers apart
        self._shared: dict[tuple[int, str], Tensor] = {}
        self._outside: dict[str, Tensor] = {}
        self._shown = {name for member in members for name, shows in zip(member.mark.tops, member.mark.shows) if shows}
        self._readers = Counter(
            name
            for member, own in zip(members, sources)
            for name, source in zip(member.mark.bottoms, own)
            if source is None
        )
        tops: list[list[Tensor | None]] = []
        for place, member in enumerate(members):
            bottoms = [
                self._bottom(place, i, None if source is None else tops[source[0]][source[1]])
                for i, source in enumerate(sources[place])
            ]
            self.edges.append(bottoms)
            tops.append(self._add(place, member, bottoms))

    def passes(self, outputs: Sequence[Tensor], wrt: Sequence[str]) -> Passes:
        """Return the passes with gradients of outputs by some values (see `Build.passes`)."""
        found = self.build.passes(outputs, wrt)
        copies = self._aliases.keys()
        forward = renamed((node for node in found.forward if not copies & set(node.writes)), self._aliases)
        return replace(found, forward=forward, backward=renamed(found.backward, self._aliases))

    def shown(self) -> list[Tensor]:
        """Return all that the host reads after a forward pass."""
        return [tensor for own in self.written for tensor in own]

    def number(self, scalar: str) -> float:
        """Return the value of a scalar of the graph in this run (see `BuiltLayer.scalar`)."""
        name, _, place = scalar.rpartition(".")
        member = self._members[int(place)]
        return float(getattr(member.layer, name)(member.top))

    def _bottom(self, place: int, i: int, inside: Tensor | None) -> Tensor:
        """Return what a layer reads as one of its bottoms."""
        build, member = self.build, self._members[place]
        name, found = member.mark.bottoms[i], inside
        if found is None:
            if name not in self._outside:
                shape = member.layer.shapes[i]
                found = self._input(f"bottom{len(self._outside)}", shape, lambda: member.bottom[i].data)
                self._outside[name] = found
                self.changing |= {found.name} if name in self._shown else set()
            found = self._outside[name]
        is_cut = (place, i) in self._cuts
        if is_cut or (inside is None and self._readers[name] > 1):
            alias = dropout.same(build, found)
            self._aliases[alias.name], found = found.name, alias
        if is_cut:
            build.without_gradient(found)
        if inside is None:
            self.diffs[found.name] = lambda: member.bottom[i].diff
            self.overlapping |= {found.name} if name in self._shown else set()
        return found

    def _add(self, place: int, member: Any, bottoms: list[Tensor]) -> list[Tensor | None]:
        """Add a layer and return its tops, None for those that the host writes."""
        build, layer, mark = self.build, member.layer, member.mark
        learned = [self._blob(layer, i) for i in range(len(layer.blobs))]
        self.blobs.append([tensor.name for tensor in learned])
        given = {name: self._given(place, layer, name) for name in layer.given}
        results, made = layer.parts(build, bottoms, learned, given)
        own = list(results)
        for name, tensor in zip(layer.results, own):
            self.arrays[tensor.name] = partial(getattr, layer, name)
        tops: list[Tensor | None] = [None] * layer.first_top
        for j, tensor in enumerate(made, layer.first_top):
            tops.append(build.reshape(tensor, member.top[j].shape))
            if mark.shows[j]:
                own.append(tensor)
                self.arrays[tensor.name], self.diffs[tensor.name] = _top(member, j)
                self.changing |= {tensor.name} if mark.changes[j] else set()
                self.overlapping |= {tensor.name} if mark.tops[j] in self._outside else set()
        for tensor in (*results, *made) if (place, ALL) in self._cuts else ():
            build.without_gradient(tensor)
        self.written.append(own)
        return tops

    def _blob(self, layer: Any, i: int) -> Tensor:
        use = "state" if i in layer.changed else "learned" if i in layer.learned_blobs() else "fixed"
        array = layer.blobs[i].data
        key = buffer(array).address, use
        if key not in self._shared:
            add = self.build.state if use == "state" else self.build.input
            found = add(f"blob{len(self._shared)}", tuple(array.shape))
            self.arrays[found.name] = lambda: layer.blobs[i].data
            self.diffs[found.name] = lambda: layer.blobs[i].diff
            self._shared[key] = found
        return self.build.reshape(self._shared[key], tuple(array.shape))

    def _given(self, place: int, layer: Any, name: str) -> Tensor:
        array = getattr(layer, name)
        dtype = "float32" if array.dtype.kind == "f" else "int32"
        return self._input(f"given{place}.{name}", array.shape, partial(getattr, layer, name), dtype)

    def _input(self, name: str, shape: Sequence[int], fetch: Fetch, dtype: str = "float32") -> Tensor:
        self.arrays[name] = fetch
        return self.build.input(name, tuple(shape), dtype)


def _top(member: Any, j: int) -> tuple[Fetch, Fetch]:
    """Return what returns the arrays of a layer's top: its data, and its gradient."""
    return lambda: member.top[j].data, lambda: member.top[j].diff


def renamed(nodes: Iterable[Node], names: Mapping[str, str]) -> tuple[Node, ...]:
    """Return nodes with other names of some values."""
    return tuple(replace(node, arguments=tuple(names.get(name, name) for name in node.arguments)) for node in nodes)
