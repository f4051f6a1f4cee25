"""PyTorch's plugin: a backend of `torch.compile`, and PyTorch's CPU operators as a peer of the benchmarks."""

from __future__ import annotations

from typing import Any

from clgraft.plugins.torch.plugin import PLUGIN

__all__ = ["PLUGIN", "explain"]


def explain(model: Any, *inputs: Any, device: str | None = None) -> Any:
    """Run a model and return which of its operators run on the device, and why others do not.

    See `clgraft.plugins.torch.backend.explain`; PyTorch is imported only here.
    """
    from clgraft.plugins.torch import backend

    return backend.explain(model, *inputs, device=device)
