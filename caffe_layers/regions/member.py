"""A layer in a region: what it is called with, and how it finds its region."""

from __future__ import annotations

import threading
from typing import Any

from clgraft.caffe_layers.prototxt.marks import PHASES, Mark, read_mark
from clgraft.caffe_layers.regions.region import RegionExecution
from clgraft.core.errors import ProblemError

_open: dict = {}  # thread -> the region whose layers are being set up


class Member:
    """A layer's side of its region.

    Attributes
    ----------
    mark : Mark
    region : RegionExecution
    layer : OclLayer
    bottom, top : sequence of Blob
        Caffe's blobs, of the last call.
    """

    def __init__(self, layer: Any, mark: Mark, region: RegionExecution, bottom: Any, top: Any) -> None:
        self.layer, self.mark, self.region = layer, mark, region
        self.bottom, self.top = bottom, top

    @property
    def in_place(self) -> bool:
        """Whether a top has the name of a bottom."""
        return bool(set(self.mark.bottoms) & set(self.mark.tops))

    def shapes(self) -> list:
        """Return the bottoms' shapes; their data may not exist."""
        return [tuple(self.bottom[i].shape) for i in range(len(self.mark.bottoms))]

    def reshape(self, sources: list) -> None:
        """Take the shapes of this pass before Caffe asks for it.

        Parameters
        ----------
        sources : list of (int, int) or None
            For each bottom, the layer of the region and the top that it comes from. Caffe's copy for a further reader
            has a shape of its own.
        """
        for i, source in enumerate(sources):
            if source is not None:
                place, j = source
                shape = tuple(self.region.members[place].top[j].shape)
                if tuple(self.bottom[i].shape) != shape:
                    self.bottom[i].reshape(*shape)
        self.layer.reshape(self.bottom, self.top)

    def forward(self, bottom: Any, top: Any) -> None:
        """Take part in a forward pass."""
        self.bottom, self.top = bottom, top
        self.region.forward(self)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        """Take part in a backward pass."""
        self.bottom, self.top = bottom, top
        self.region.backward(self, tuple(bool(propagate_down[i]) for i in range(len(self.mark.bottoms))))


def join(layer: Any, bottom: Any, top: Any) -> Member | None:
    """Return a layer's membership of the region that its `param_str` names; None if it is in none.

    Caffe sets the layers of a net up one after the other, in one thread.

    Raises
    ------
    ProblemError
        If the layers of a region do not follow each other as the swap found them.
    """
    mark = read_mark(layer.param_str, PHASES[layer.phase])
    if mark is None:
        return None
    thread = threading.get_ident()
    if mark.place == 0:
        _open[thread] = RegionExecution(mark.region, mark.count, mark.runs, mark.precision)
    region = _open.get(thread)
    if region is None or region.name != mark.region or len(region.members) != mark.place:
        found = "none of its layers" if region is None else f"{len(region.members)} layers of region {region.name}"
        raise ProblemError(
            f"[region] got {found} before layer {mark.place + 1} of region {mark.region}, "
            "expected all of them in the order in which they were swapped: swap the net again"
        )
    member = Member(layer, mark, region, bottom, top)
    region.members.append(member)
    if mark.place == mark.count - 1:
        del _open[thread]
    return member
