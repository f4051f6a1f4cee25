"""Regions of a net that nobody has swapped: the marks that a swap would write into its layers."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import REGION
from clgraft.caffe_layers.swap import swap_net


def marks(text: str, types: Sequence[str], keep: Sequence[str]) -> list:
    """Return lines: `@` and a layer's number, then its marks, and so on.

    Parameters
    ----------
    text : str
        The net.
    types : sequence of str
        Caffe's types that clgraft serves.
    keep : sequence of str
        Blobs, or patterns, that stay on the host.
    """
    swapped, _ = swap_net(text, types=types, regions=True, keep=keep, native=True)
    lines: list = []
    for number, layer in enumerate(schema.parse("NetParameter", swapped).layer):
        own = [line for line in layer.python_param.param_str.splitlines() if line.startswith(REGION)]
        if own:
            lines += [f"@{number}", *own]
    return lines
