"""MXNet's plugin: swap, check, tuning and benchmarks of symbol files."""

from clgraft.plugins.mxnet.plugin import PLUGIN

__all__ = ["PLUGIN"]
