"""Says which of a net's blobs are hidden: pycaffe would show what happens to be in their memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from clgraft.core.log import log


class HiddenBlob:
    """A blob whose values are not on the host: it has a shape, and arrays of NaN that cannot be written.

    The first look at its values is answered with a warning.
    """

    def __init__(self, blob: Any, name: str, region: Any) -> None:
        self._blob, self._name, self._region = blob, name, region

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    @property
    def data(self) -> np.ndarray:
        """NaN in the blob's shape."""
        return self._nothing()

    @property
    def diff(self) -> np.ndarray:
        """NaN in the blob's shape."""
        return self._nothing()

    def _nothing(self) -> np.ndarray:
        told = self._region.told
        if self._name not in told:
            told.add(self._name)
            log.warning(
                "clgraft: blob %r is inside of the region that starts at %r: its values are not on the host and read "
                "as NaN; to keep them there swap with --regions --keep %s",
                self._name,
                self._region.name,
                self._name,
            )
        values = np.full(tuple(self._blob.shape), np.nan, np.float32)
        values.flags.writeable = False
        return values


def hidden_blobs(net: Any) -> dict:
    """Return the hidden blobs of a net: their places among its blobs, with their regions."""
    found: dict = {}
    for number, layer in enumerate(net.layers):
        member, tops = getattr(layer, "member", None), list(net._top_ids(number))
        for place, top in enumerate(tops):
            found.pop(top, None)  # the last layer that writes a blob decides
            if member is not None and not member.mark.shows[place]:
                found[top] = member.region
            elif layer.type == "Split":  # Caffe's copy for a blob's further readers shares its memory
                region = found.get(net._bottom_ids(number)[0])
                found.update({} if region is None else {top: region})
    return found


def install(net_class: Any) -> None:
    """Let the property `blobs` of pycaffe's nets show hidden blobs as such; once."""
    native = net_class.blobs
    if getattr(native.fget, "shows_hidden", False):
        return

    def blobs(net: Any) -> Any:
        """Return the net's blobs by name, in their order."""
        found = net.__dict__.get("_clgraft_blobs")
        if found is None:
            found, hidden = native.fget(net), hidden_blobs(net)
            if hidden:
                items = enumerate(found.items())
                found = OrderedDict(
                    (name, HiddenBlob(blob, name, hidden[place]) if place in hidden else blob)
                    for place, (name, blob) in items
                )
            net.__dict__["_clgraft_blobs"] = found
        return found

    blobs.shows_hidden = True  # type: ignore[attr-defined]
    net_class.blobs = property(blobs, doc=native.__doc__)
