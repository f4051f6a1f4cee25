"""What goes wrong with models."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.plugins.plugin import PluginError


class OnnxError(PluginError):
    """Raised for a model that cannot be read, or arrays that do not fit it."""


class UnsupportedError(OnnxError):
    """Raised for a valid model with nodes that clgraft does not run.

    Attributes
    ----------
    nodes : tuple of str
        Each node's operator, name and, where it has one, the reason.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(dict.fromkeys(nodes))
        shown = "; ".join(self.nodes[:20]) + ("; ..." if len(self.nodes) > 20 else "")
        super().__init__(f"[onnx] got {len(self.nodes)} nodes that clgraft does not run, expected none: {shown}")
