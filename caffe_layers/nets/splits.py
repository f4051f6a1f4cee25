"""Nets with the Split layers that Caffe puts where several layers read one blob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clgraft.caffe_layers.prototxt import schema

SPLIT = "Split"


def with_splits(net: Any, layers: Sequence[Any], inputs: Sequence[str] = ()) -> Any:
    """Return a net of some layers in which each blob is read once, with Caffe's names of layers and blobs.

    Parameters
    ----------
    net : NetParameter
    layers : sequence of LayerParameter
        Those of a phase.
    inputs : sequence of str
        Inputs of the net itself, which Caffe makes tops of a layer ``input``.
    """
    made = schema.message_class("NetParameter")()
    made.CopyFrom(net)
    del made.layer[:]
    sources = {name: (-1, place) for place, name in enumerate(inputs)}  # blob -> the layer and top that made it last
    read: dict[tuple[int, int], int] = {}
    origin: dict[tuple[int, int], tuple[int, int]] = {}
    for number, layer in enumerate(layers):
        for place, name in enumerate(layer.bottom):
            origin[number, place] = sources[name]
            read[sources[name]] = read.get(sources[name], 0) + 1
        sources.update({name: (number, place) for place, name in enumerate(layer.top)})
    taken: dict[tuple[int, int], int] = {}

    def split(layer: str, place: int, name: str, top: tuple[int, int]) -> None:
        if read.get(top, 0) > 1:
            added = made.layer.add(name=f"{name}_{layer}_{place}_split", type=SPLIT, bottom=[name])
            added.top.extend(f"{added.name}_{copy}" for copy in range(read[top]))

    for place, name in enumerate(inputs):
        split("input", place, name, (-1, place))
    for number, layer in enumerate(layers):
        copy = made.layer.add()
        copy.CopyFrom(layer)
        for place, name in enumerate(layer.bottom):
            top = origin[number, place]
            if read[top] > 1:
                owner = "input" if top[0] < 0 else layers[top[0]].name
                copy.bottom[place] = f"{name}_{owner}_{top[1]}_split_{taken.get(top, 0)}"
                taken[top] = taken.get(top, 0) + 1
        for place, name in enumerate(layer.top):
            split(layer.name, place, name, (number, place))
    return made
