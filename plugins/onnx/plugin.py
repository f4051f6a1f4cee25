"""ONNX in the registry: .onnx files."""

from __future__ import annotations

from pathlib import Path

from clgraft.plugins.plugin import Plugin


class OnnxPlugin(Plugin):
    """Models in ONNX files, which run as one graph."""

    name = "onnx"
    models = "an ONNX model's .onnx"
    examples = ("clgraft check model.onnx", "clgraft run model.onnx --input x=image.npy --profile")

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".onnx"


PLUGIN = OnnxPlugin()
