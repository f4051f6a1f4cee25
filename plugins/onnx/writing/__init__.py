"""Writes nets of any kind as ONNX models: what `clgraft export` does."""

from clgraft.plugins.onnx.writing.model import to_onnx

__all__ = ["to_onnx"]
