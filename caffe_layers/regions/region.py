"""A region at work: layers that are part of a graph, and the passes of it that one of them runs for all."""

from __future__ import annotations

from typing import Any

from clgraft import core
from clgraft.caffe_layers.prototxt.marks import PHASES
from clgraft.caffe_layers.regions.program import RegionProgram, Wanted
from clgraft.core import settings
from clgraft.core.errors import ProblemError
from clgraft.core.planning.precision import mixed_precision

MOST_PROGRAMS = 4  # shapes whose memory is kept
SILENT = ()  # what a layer wants whose backward Caffe does not call


class RegionExecution:
    """Layers of a net that run as one graph.

    The forward of the first loss runs the whole region, because Caffe adds each loss up as soon as its layer has run;
    without a loss the last layer's does. Caffe calls backward in the opposite order, and the first call runs
    everything. Which gradients are wanted is then only known from the pass before, and in the first one from the
    net's text: what turns out to be missing is computed when its layer is called.

    Parameters
    ----------
    name : str
        Its first layer's.
    count : int
        Number of its layers.
    runs : int
        The place of the layer whose forward runs the region.
    precision : str
        ``float16`` or ``bfloat16``, the type of its products; empty for what ``CLGRAFT_PRECISION`` says.
    """

    def __init__(self, name: str, count: int, runs: int, precision: str = "") -> None:
        self.name, self.count, self.runs, self.precision = name, count, runs, precision
        self.members: list = []
        self.context = core.context()
        self.told: set = set()  # names of hidden blobs that a user has been warned of
        self._programs: dict = {}
        self._next = 0  # the place of the layer whose forward comes next
        self._called: list = []  # places whose backward was called since the last forward, in order
        self._wanted: dict = {}  # place -> what its backward was called with
        self._assumed: Wanted | None = None
        self._done: frozenset = frozenset()  # places whose gradients were computed
        self._start = count - 1  # the place whose backward comes first
        self._saves = False
        self._sources: list = []
        self._shaped: tuple = ()  # what the shapes of the layers after `runs` were derived from

    def forward(self, member: Any) -> None:
        """Take a layer's call; one of them runs the region."""
        place = member.mark.place
        if place == 0:
            self._learn()
        elif place != self._next:
            raise ProblemError(
                f"[region] got a forward pass that starts in region {self.name} at {member.layer.name()!r}, expected "
                f"one that starts at or in front of its first layer; --keep {' '.join(member.mark.bottoms)} ends the "
                "region there"
            )
        self._next = place + 1
        if place == self.runs:
            self._reshape_rest()
            self._run_forward()

    def backward(self, member: Any, flags: tuple) -> None:
        """Take a layer's call; the first one of a pass runs the region."""
        place = member.mark.place
        if self._called and place >= self._called[-1]:
            self._learn()
        first = not self._called
        if first and not any(any(each.mark.shows) for each in self.members[: place + 1]):
            raise ProblemError(
                f"[region] got a backward pass that starts in region {self.name} at {member.layer.name()!r}, expected "
                f"one that starts at or after its last layer; --keep {' '.join(member.mark.tops)} ends the region there"
            )
        self._called = [*self._called, place]
        self._wanted[place] = flags
        if first:
            self._start, self._saves = place, True
            self._assumed, program = self._expected(), self._program()
            program.backward(self._assumed)
            self._done = program.active(self._assumed)
        elif self._assumed is not None:
            more = self._assumed.with_flags(place, flags)
            if more != self._assumed or place not in self._done:
                self._program().add(self._assumed, more, place, place not in self._done)
                self._assumed, self._done = more, self._done | {place}

    def hides(self, place: int, top: int) -> bool:
        """Return whether a layer's top is not on the host."""
        return not self.members[place].mark.shows[top]

    def mixed(self) -> str | None:
        """Return the type of 16 bits that products have; None for float32."""
        return mixed_precision(self.precision or None)

    def _learn(self) -> None:
        """Take note of the layers that a backward pass did not call."""
        if self._called:
            for place in range(self._called[0]):
                if place not in self._called:
                    self._wanted[place] = SILENT
        self._called = []

    def _expected(self) -> Wanted:
        flags = tuple(self._wanted.get(member.mark.place, member.mark.back) for member in self.members)
        return Wanted(flags[: self._start + 1])

    def _program(self) -> RegionProgram:
        """Return the program of the current shapes."""
        shapes = tuple(tuple(member.layer.shapes) for member in self.members)
        key = (shapes, settings.GRAPH.text(), self.mixed())
        found = self._programs.pop(key, None)
        if found is None:
            found = RegionProgram(self)
            while len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = found  # the last one is the one used last
        return found

    def _reshape_rest(self) -> None:
        """Set the shapes of this pass in the layers after the one that runs the region."""
        rest = self.members[self.runs + 1 :]
        if not rest:
            return
        sources = self.sources()
        outside = [
            tuple(member.bottom[i].shape)
            for member in rest
            for i, source in enumerate(sources[member.mark.place])
            if source is None
        ]
        shaped = (*(member.layer.prepared for member in self.members[: self.runs + 1]), *outside)
        if shaped == self._shaped:
            return
        for member in rest:
            member.reshape(sources[member.mark.place])
        self._shaped = shaped

    def sources(self) -> list:
        """Return for each layer and bottom the layer and top that it comes from; None from outside."""
        if len(self._sources) < len(self.members):
            current: dict = {}
            self._sources = []
            for place, member in enumerate(self.members):
                self._sources.append([current.get(name) for name in member.mark.bottoms])
                current.update({name: (place, j) for j, name in enumerate(member.mark.tops)})
        return self._sources

    def _run_forward(self) -> None:
        for member in self.members:
            member.layer.begin()
        trains = self.members[0].layer.phase == PHASES.index("TRAIN")
        self._program().forward(self._expected() if trains or self._saves else None)
        for member in self.members:
            member.layer.end(member.bottom, member.top)
