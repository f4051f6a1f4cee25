"""The problems of a Caffe net: what its swapped layers plan in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clgraft import core
from clgraft.caffe_layers.prototxt.marks import REGION
from clgraft.caffe_layers.swap import naming, net_of, swap_back, swap_net
from clgraft.caffe_layers.swap.upgrade import upgrade
from clgraft.core.problem import Problem
from clgraft.plugins.caffe.check import _forced, _load
from clgraft.plugins.plugin import PluginError


def problems(path: str, training: bool = True, passes: int = 1, regions: bool = False) -> tuple[Problem, ...]:
    """Return what a net's swapped layers plan, forward and, in training, backward.

    Parameters
    ----------
    path : str
        A net, swapped or not, or a solver that names one.
    training : bool
        The phase; without it only forward.
    passes : int
        How often the net is run.
    regions : bool
        Whether to swap with regions; a net that was swapped with them keeps them.
    """
    try:
        import caffe
    except (ImportError, OSError) as error:
        raise PluginError(f"[caffe] Caffe is needed to read a net's shapes and cannot be imported: {error}") from None
    text, place = net_of(Path(path), training)
    with naming(place):
        # forced gradients concern the swap: one that was done before is done again
        native, restored = swap_back(upgrade(text).text)
        names = [row.name for row in restored.swapped] or None
        regions = regions or REGION in text
        swapped, _ = swap_net(_forced(native) if training else native, names=names, regions=regions)
    caffe.set_mode_cpu()
    net: Any = _load(caffe, swapped, caffe.TRAIN if training else caffe.TEST)
    for _ in range(passes):
        net.forward()
        if training:
            net._backward(len(net.layers) - 1, 0)
    found = core.context().problems()
    if not found:
        raise PluginError(f"[caffe] got {path}, in which no layer has an OpenCL counterpart")
    return found
