"""Caffe's plugin: swap, check, tuning and benchmarks of prototxt files."""

from clgraft.plugins.caffe.plugin import PLUGIN

__all__ = ["PLUGIN"]
