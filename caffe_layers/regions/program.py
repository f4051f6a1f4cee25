"""What a region does for given shapes: the passes of its graph, made when they are first wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clgraft.caffe_layers.regions.graph import ALL, RegionGraph, renamed
from clgraft.caffe_layers.regions.passes import Kept, Pass
from clgraft.core import ACCUMULATE, OVERWRITE
from clgraft.core.errors import ClgraftError
from clgraft.core.graph import Call, Graph, Node, graph_call
from clgraft.core.graph.compiled import preferences_of
from clgraft.core.graph.identity import identity
from clgraft.core.graph.passes import Image
from clgraft.core.nn.builder import Passes
from clgraft.core.planning.precision import FLOAT32


@dataclass(frozen=True)
class Wanted:
    """What a backward pass is to compute.

    Attributes
    ----------
    flags : tuple of tuple of bool
        For each layer up to the one where the pass starts, which bottoms have gradients; empty for a layer whose
        backward is not called.
    """

    flags: tuple

    def with_flags(self, place: int, flags: tuple) -> Wanted:
        """Return the same with more gradients of a layer."""
        own = self.flags[place] or (False,) * len(flags)
        more = tuple(have or want for have, want in zip(own, flags))
        return Wanted((*self.flags[:place], more, *self.flags[place + 1 :]))


@dataclass(frozen=True)
class _Derived:
    """A forward pass and the backward pass that belongs to it.

    Attributes
    ----------
    whole : RegionGraph
    alone, both : Passes
        In float32, and as they run after each other: with copies of what changes between them, and types of their own.
    kept : frozenset of str
        What the backward pass reads of the forward one that no array of Caffe's holds.
    last : dict of str to Image
        Those of them that lie in channels last.
    gradients : dict of str to str
        Values, and their gradients.
    zeros : list of (int, int)
        Bottoms from outside (layer, place) whose gradients are zero.
    """

    whole: RegionGraph
    alone: Passes
    both: Passes
    kept: frozenset[str]
    last: dict[str, Image]
    gradients: dict[str, str]
    zeros: list[tuple[int, int]]


class RegionProgram:
    """The passes of a region for the shapes that its layers have.

    Parameters
    ----------
    region : RegionExecution
    """

    def __init__(self, region: Any) -> None:
        self.region, self._sources, self._mixed = region, region.sources(), region.mixed()
        self._graphs: dict[frozenset, RegionGraph] = {}  # by their cuts
        self._derived: dict[Wanted, _Derived] = {}
        self._passes: dict[tuple, Pass] = {}
        self._memory = Kept(region.context)
        # whose values are kept, which, and those of them that lie in channels last
        self._kept: tuple[RegionGraph | None, frozenset, dict[str, Image]] = None, frozenset(), {}

    def forward(self, wanted: Wanted | None) -> None:
        """Run the forward pass; `wanted` is what a backward pass is expected to compute, None if none is."""
        found = None
        if wanted is not None:
            # a layer may have no gradient: the backward pass says so, if there is one
            with contextlib.suppress(ClgraftError):
                found = self._derive(wanted)
        self._kept = (None, frozenset(), {}) if found is None else (found.whole, found.kept, found.last)
        key: tuple = ("forward",)
        if found is not None and found.kept:
            key = ("forward", found.whole, found.kept, *sorted(found.last.items()))
        if key not in self._passes:
            self._passes[key] = self._forward(found if len(key) > 1 else None)
        self._passes[key].run()

    def backward(self, wanted: Wanted) -> None:
        """Run the backward pass of the last forward pass."""
        self._run(wanted, None)

    def add(self, known: Wanted, more: Wanted, place: int, blobs: bool) -> None:
        """Compute the gradients of a layer that `more` asks for and `known` did not; `blobs` are missing as well."""
        if place not in self.active(more):
            return
        whole, layer = self._derive(more).whole, self.region.members[place].layer
        only = {
            whole.edges[place][i].name
            for i, flag in enumerate(more.flags[place])
            if flag and self._sources[place][i] is None and not (known.flags[place] and known.flags[place][i])
        }
        only |= {whole.blobs[place][i] for i in layer.learned_blobs()} if blobs else set()
        if only:
            self._run(more, frozenset(only))

    def active(self, wanted: Wanted) -> frozenset:
        """Return the places of the layers that a gradient reaches."""
        found, fed = set(), set()
        for place in reversed(range(len(wanted.flags))):
            flags = wanted.flags[place]
            if flags and (place in fed or any(self.region.members[place].mark.shows)):
                found.add(place)
                fed |= {source[0] for source, flag in zip(self._sources[place], flags) if flag and source is not None}
        return frozenset(found)

    def _run(self, wanted: Wanted, only: frozenset | None) -> None:
        found = self._derive(wanted)
        whole, kept, last = self._kept
        # what the forward pass has not kept, or in another layout, is computed again
        there = whole is found.whole and found.kept <= kept
        there = there and all(found.last.get(name) == last.get(name) for name in found.kept)
        again = only is not None or (bool(found.kept) and not there)
        key = wanted, again, only
        if key not in self._passes:
            self._passes[key] = self._backward(found, again, found.gradients if only is None else only)
        self._passes[key].run()
        for place, i in found.zeros:
            self.region.members[place].bottom[i].diff[...] = 0

    def _derive(self, wanted: Wanted) -> _Derived:
        if wanted not in self._derived:
            self._derived[wanted] = self._made(wanted)
        return self._derived[wanted]

    def _made(self, wanted: Wanted) -> _Derived:
        """Return the passes that compute some gradients."""
        members, active, whole = self.region.members, self.active(wanted), self._whole(self._cuts(wanted))
        bottoms: dict[str, tuple[int, int]] = {}
        blobs: dict[str, None] = {}
        outputs = []
        for place, flags in enumerate(wanted.flags):
            if place in active:
                members[place].layer.expect_gradients(flags)
                outputs += whole.written[place]
                blobs.update(dict.fromkeys(whole.blobs[place][i] for i in members[place].layer.learned_blobs()))
            for i, flag in enumerate(flags):
                if flag and self._sources[place][i] is None:
                    bottoms[whole.edges[place][i].name] = place, i
        alone = whole.passes(outputs, (*bottoms, *blobs))
        both = _saving(alone, whole.changing)
        if self._mixed is not None:
            both = both.mixed(self._mixed, _names(whole))
        both = both.joined(_names(whole))
        gradients = {name: gradient for name, gradient in alone.found.items() if gradient}
        backward = both.graph(both.backward, list(gradients.values()))
        there = {*whole.arrays, *whole.build.constants, *(value.name for value in both.incoming.values())}
        kept = frozenset(value.name for value in backward.inputs if value.name not in there)
        last = both.settled(sorted(kept - {*_names(whole)}), preferences_of(self.region.context))
        zeros = [key for name, key in bottoms.items() if name not in gradients]
        return _Derived(whole, alone, both, kept, last, gradients, zeros)

    def _whole(self, cuts: frozenset) -> RegionGraph:
        if cuts not in self._graphs:
            self._graphs[cuts] = RegionGraph(self.region.members, self._sources, cuts)
        return self._graphs[cuts]

    def _cuts(self, wanted: Wanted) -> frozenset:
        """Return the bottoms through which gradients would flow that are not wanted, as `RegionGraph` takes them."""
        leads: list[bool] = []  # whether a gradient is wanted of something that a layer depends on
        found: set[tuple[int, int]] = set()
        for place, flags in enumerate(wanted.flags):
            learns = bool(self.region.members[place].layer.learned_blobs())
            below = [source is None or leads[source[0]] for source in self._sources[place]]
            inside = [source is not None and lead for source, lead in zip(self._sources[place], below)]
            if flags:
                found |= {(place, i) for i, flag in enumerate(flags) if inside[i] and not flag}
            elif learns or any(inside):
                found.add((place, ALL))
            leads.append(bool(flags) and (learns or any(flag and lead for flag, lead in zip(flags, below))))
        return frozenset(found)

    def _forward(self, found: _Derived | None) -> Pass:
        """Return a forward pass, which keeps what a backward pass reads."""
        if found is None:
            whole = next(iter(self._graphs.values())) if self._graphs else self._whole(frozenset())
            passes = whole.passes(whole.shown(), ())
            graph = passes.graph(passes.forward, _names(whole))
            return self._pass(whole, graph, {}, self._mixed or FLOAT32)
        graph = found.both.graph(found.both.forward, (*_names(found.whole), *sorted(found.kept)))
        return self._pass(found.whole, graph, {}, FLOAT32, last=found.last)

    def _backward(self, found: _Derived, again: bool, names: Collection[str]) -> Pass:
        """Return a backward pass for the gradients of some values; one that computes the forward pass again."""
        wanted = {found.gradients[name]: name for name in found.gradients if name in names}
        if not again:
            graph = found.both.graph(found.both.backward, list(wanted))
            return self._pass(found.whole, graph, wanted, FLOAT32, found, found.last)
        passes = found.alone
        nodes = [node for node in passes.forward if not node.changes]  # states stay as they are
        graph = passes.graph((*nodes, *passes.backward), list(wanted))
        return self._pass(found.whole, graph, wanted, self._mixed or FLOAT32, found)

    def _pass(
        self,
        whole: RegionGraph,
        graph: Graph,
        gradients: dict[str, str],
        precision: str,
        found: _Derived | None = None,
        last: Mapping[str, Image] | None = None,
    ) -> Pass:
        learned = {name for own in whole.blobs for name in own}
        added = [gradient for gradient, name in gradients.items() if name in learned]
        arrays = {name: (fetch, OVERWRITE) for name, fetch in whole.arrays.items()}
        for gradient, name in gradients.items():
            arrays[gradient] = whole.diffs[name], ACCUMULATE if name in learned else OVERWRITE
        for name, value in (found.alone.incoming if found else {}).items():
            if name in whole.diffs:  # others are results, whose gradients nobody reads
                arrays[value.name] = whole.diffs[name], OVERWRITE
        context = self.region.context

        def call() -> Call | None:
            if not (graph.outputs or graph.states):
                return None
            given = {value.name for value in graph.inputs}
            constants = {name: array for name, array in whole.build.constants.items() if name in given}
            compiled = context.compile(graph, None, constants, precision=precision, last=last)
            return graph_call(compiled, graph.outputs, added)

        overlapping = {name for name in graph.outputs if name in whole.overlapping}
        overlapping |= {gradient for gradient, name in gradients.items() if name in whole.overlapping}
        return Pass(call, arrays, self._memory.buffer, whole.number, overlapping, context.finish)


def _names(whole: RegionGraph) -> list[str]:
    """Return the values that the host reads after a forward pass."""
    return [tensor.name for tensor in whole.shown()]


def _saving(passes: Passes, changing: Collection[str]) -> Passes:
    """Return passes of which the backward one reads copies of values that change."""
    read = {name for node in passes.backward for name in node.reads}
    copies = {name: f"kept.{name}" for name in sorted(changing) if name in read}
    values = {value.name: value for value in passes.known()}
    saving = (Node(identity(values[name]), (name, copy)) for name, copy in copies.items())
    return replace(passes, forward=(*passes.forward, *saving), backward=renamed(passes.backward, copies))
