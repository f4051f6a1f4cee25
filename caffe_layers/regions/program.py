"""What a region does for given shapes: its layers' recordings, the memory that they name, and their passes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from clgraft import core
from clgraft.caffe_layers.regions.memory import Memory, Stand, buffer
from clgraft.core.errors import ClgraftError
from clgraft.core.graph.recorder import Lowered, Recording
from clgraft.core.graph.replay import Replay


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


@dataclass
class _Pass:
    """A recorded backward pass.

    Attributes
    ----------
    lowered : Lowered
    zeros : list of (int, int)
        Bottoms from outside (layer, place) whose gradients are zero.
    """

    lowered: Lowered
    zeros: list


class RegionProgram:
    """The passes of a region for the shapes that its layers have.

    Parameters
    ----------
    region : RegionExecution
    """

    def __init__(self, region: Any) -> None:
        self.region = region
        self._fetch: dict = {}  # address -> what returns the array in its place
        self._data: list = []  # for each layer, what stands for the data of its bottoms and of its tops
        self._sources = region.sources()
        self._backward: dict = {}
        self._again: dict = {}
        self._forward: dict = {}
        changing: set = set()
        overlapping: set = set()
        constants: dict = {}
        shown = {
            name for member in region.members for name, is_shown in zip(member.mark.tops, member.mark.shows) if is_shown
        }
        results: set = set()
        outside: dict = {}
        region.recorder.take()  # what an attempt that failed has left
        for place, member in enumerate(region.members):
            layer, mark = member.layer, member.mark
            bottoms = []
            for i, (name, source) in enumerate(zip(mark.bottoms, self._sources[place])):
                if source is not None:
                    bottoms.append(self._data[source[0]][1][source[1]])
                    continue
                if name not in outside:
                    outside[name] = Memory(layer.shapes[i])
                    self._fetch[outside[name].address] = _data_of(member, "bottom", i)
                    if name in shown:
                        changing.add(outside[name].address)
                bottoms.append(outside[name])
            tops = []
            for j, name in enumerate(mark.tops):
                memory = Memory(tuple(member.top[j].shape))
                tops.append(memory)
                self._fetch[memory.address] = _data_of(member, "top", j)
                if mark.shows[j]:
                    results.add(memory.address)
                    if mark.changes[j]:
                        changing.add(memory.address)
                    if name in outside:
                        overlapping.add(memory.address)
            self._data.append((bottoms, tops))
            self._bind_layer(member, results, constants)
            layer.compute([Stand(data) for data in bottoms], [Stand(data) for data in tops])
        self._overwritten = {name for name in outside if name in shown}
        self._overlapping = overlapping
        self.recording = Recording(region.recorder.take(), results, changing, region.mixed())
        self.replay = Replay(region.context, constants, self._overlapping)
        self._stamp = self._addresses()

    def forward(self, wanted: Wanted | None) -> None:
        """Run the forward pass; `wanted` is what a backward pass is expected to compute, None if none is."""
        kept: tuple = ()
        if wanted is not None:
            # a layer may have no gradient: the backward pass says so, if there is one
            with contextlib.suppress(ClgraftError):
                kept = self._pass(wanted).lowered.kept
        if kept not in self._forward:
            self._forward[kept] = self.recording.forward(kept)
        self.replay.run(self._forward[kept], self._array, keeps=True)

    def backward(self, wanted: Wanted) -> None:
        """Run the backward pass of the last forward pass."""
        self._run(wanted, ())

    def add(self, known: Wanted, more: Wanted, place: int, blobs: bool) -> None:
        """Compute the gradients of a layer that `more` asks for and `known` did not; `blobs` are missing as well."""
        only: set = {
            (place, i)
            for i, flag in enumerate(more.flags[place])
            if flag and self._sources[place][i] is None and not (known.flags[place] and known.flags[place][i])
        }
        if blobs:
            own = self.region.members[place].layer.blobs
            only |= {buffer(own[i].diff).address for i in range(len(own))}
        if only and place in self.active(more):
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

    def _run(self, wanted: Wanted, only: Any) -> None:
        if wanted not in self._backward and self._stamp != self._addresses():
            self.__init__(self.region)  # type: ignore[misc]  # the layers have other memory than when they recorded
        found = self._pass(wanted)
        if only or not set(found.lowered.kept) <= set(self.replay.kept):
            key = (wanted, only)
            if key not in self._again:
                self._again[key] = self._record(wanted, again=True, only=only)
            found = self._again[key]
        self.replay.run(found.lowered, self._array)
        for place, i in found.zeros:
            self.region.members[place].bottom[i].diff[...] = 0

    def _addresses(self) -> tuple:
        """Return what changes when layers get other memory."""
        layers = [member.layer for member in self.region.members]
        blobs = tuple(buffer(blob.data).address for layer in layers for blob in layer.blobs)
        return blobs, tuple(layer.prepared for layer in layers)

    def _array(self, address: int) -> np.ndarray:
        return self._fetch[address]()

    def _bind_layer(self, member: Any, results: set, constants: dict) -> None:
        """Note the arrays of a layer's own: blobs, what the host fills or reads, and constants."""
        layer = member.layer
        for i in range(len(layer.blobs)):
            self._fetch.setdefault(buffer(layer.blobs[i].data).address, lambda i=i: layer.blobs[i].data)
        for name in (*layer.given, *layer.results):
            address = getattr(layer, name).__array_interface__["data"][0]
            self._fetch[address] = lambda name=name: getattr(layer, name)
            if name in layer.results:
                results.add(address)
        for array in layer.__dict__.get("filled", {}).values():
            constants[array.__array_interface__["data"][0]] = array

    def _pass(self, wanted: Wanted) -> _Pass:
        if wanted not in self._backward:
            self._backward[wanted] = self._record(wanted)
        return self._backward[wanted]

    def _record(self, wanted: Wanted, again: bool = False, only: Any = ()) -> _Pass:
        """Record the backward pass, from the last layer to the first."""
        region, recorder = self.region, self.region.recorder
        recorder.take()  # what an attempt that failed has left
        parts: dict = {}  # a layer's top -> the gradients of its readers, the last reader's first
        outputs: dict = {}
        zeros: list = []
        for place in reversed(range(len(wanted.flags))):
            flags, member = wanted.flags[place], region.members[place]
            if not flags:
                continue
            bottoms, tops = self._data[place]
            diffs = self._incoming(member, parts)
            if diffs is None:
                zeros += [(place, i) for i, flag in enumerate(flags) if flag and self._sources[place][i] is None]
                continue
            stands = []
            for i, flag in enumerate(flags):
                diff = Memory(bottoms[i].shape)
                if flag and self._sources[place][i] is None:
                    self._fetch[diff.address] = _diff_of(member, "bottom", i)
                    outputs[diff.address] = (place, i)
                    if member.mark.bottoms[i] in self._overwritten:
                        self._overlapping.add(diff.address)
                stands.append(Stand(bottoms[i], diff))
            for i in range(len(member.layer.blobs) if member.layer.learns_any() else 0):
                array = member.layer.blobs[i].diff
                self._fetch.setdefault(buffer(array).address, lambda i=i, layer=member.layer: layer.blobs[i].diff)
            begin = len(recorder.calls)
            member.layer.differentiate([Stand(d, g) for d, g in zip(tops, diffs)], flags, stands)
            written = {given.address for call in recorder.calls[begin:] for given in call.buffers}
            for stand, source in zip(stands, self._sources[place]):
                if source is not None and stand.diff.address in written:
                    parts.setdefault(source, []).append(stand.diff)
        addresses = {key: address for address, key in outputs.items()}
        chosen = {addresses.get(one, one) for one in only}
        self.replay.overlapping = frozenset(self._overlapping)
        lowered = self.recording.backward(recorder.take(), set(outputs), again=again, only=chosen)
        return _Pass(lowered, zeros)

    def _incoming(self, member: Any, parts: dict) -> list | None:
        """Return the gradients of a layer's tops; None if there is none."""
        place, (_, tops) = member.mark.place, self._data[member.mark.place]
        found: list = []
        for j, data in enumerate(tops):
            own = parts.get((place, j), [])[::-1]  # in the order in which Caffe adds them
            if member.mark.shows[j]:
                diff = Memory(data.shape)
                self._fetch[diff.address] = _diff_of(member, "top", j)
                found.append(diff)
            elif len(own) > 1:
                total = Memory(data.shape)
                self.region.recorder.add([buffer(part) for part in own], buffer(total), total.size)
                found.append(total)
            else:
                found.append(own[0] if own else None)
        if not any(found):
            return None
        for j, diff in enumerate(found):
            if diff is None:
                found[j] = Memory(tops[j].shape)
                zero = core.PointwiseProblem.zeros(found[j].shape)
                self.region.recorder.plan(zero).execute((buffer(tops[j]), buffer(found[j])))
        return found


def _data_of(member: Any, side: str, i: int) -> Callable[[], np.ndarray]:
    return lambda: getattr(member, side)[i].data


def _diff_of(member: Any, side: str, i: int) -> Callable[[], np.ndarray]:
    return lambda: getattr(member, side)[i].diff
