"""ONNX in the registry: .onnx files."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from clgraft.plugins.plugin import Peer, Plugin, PluginError, Task

PACKAGE = "clgraft.plugins.onnx"
THREADS = "CLGRAFT_PEER_THREADS"  # ours: these libraries take a number of threads by their API alone
NETS = ("resnet50", "vgg19", "densenet121", "squeezenet", "inception_v2", "shufflenet")


class OnnxPlugin(Plugin):
    """Models in ONNX files, which run as one graph; nothing is swapped."""

    name = "onnx"
    models = "an ONNX model's .onnx"
    examples = ("clgraft check model.onnx --shape x=1,3,224,224",)

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".onnx"

    def check(self, model: Path, options: argparse.Namespace) -> Task:
        _expect_onnx(model)
        shapes = {name: list(shape) for name, shape in options.shapes.items()}
        arguments = {"path": str(model), "shapes": shapes, "repeats": options.repeats}
        return Task(f"{PACKAGE}.check", arguments)

    def problems(self, model: Path, shapes: Mapping[str, Sequence[int]], training: bool) -> Task:
        _expect_onnx(model)
        given = {name: list(shape) for name, shape in shapes.items()}
        return Task(f"{PACKAGE}.tune", {"path": str(model), "shapes": given})

    def peers(self) -> Sequence[Peer]:
        places = {"onnxruntime": ("bench_operators", "bench_nets"), "openvino": ("bench_openvino", "bench_openvino")}
        return [
            Peer(name, name, f"{PACKAGE}.{operators}", NETS, f"{PACKAGE}.{nets}", thread_variables=(THREADS,))
            for name, (operators, nets) in places.items()
        ]


def _expect_onnx(model: Path) -> None:
    if importlib.util.find_spec("onnx") is None:
        raise PluginError(f"[onnx] onnx is needed to read {model}, expected it to be installed: pip install onnx")


PLUGIN = OnnxPlugin()
