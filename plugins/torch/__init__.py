"""PyTorch's plugin: its CPU operators as a peer of the benchmarks."""

from clgraft.plugins.torch.plugin import PLUGIN

__all__ = ["PLUGIN"]
