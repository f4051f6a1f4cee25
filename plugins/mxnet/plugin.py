"""MXNet in the registry: symbol files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from clgraft.core.files import write_models
from clgraft.core.selection import Selection
from clgraft.plugins.mxnet import symbols
from clgraft.plugins.plugin import Peer, Plugin, PluginError, SwapRequest, SwapResult, Task, with_regions

MARKS = (b'"op_type": "ocl_',)  # of symbols that hold clgraft's operators


class MXNetPlugin(Plugin):
    """Symbols saved as JSON; parameters load into the swapped symbol unchanged."""

    name = "mxnet"
    models = "a symbol's .json"
    examples = (
        "clgraft check model-symbol.json --shape data=1,3,224,224",
        "clgraft swap model-symbol.json -o model_ocl-symbol.json",
    )

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".json"

    def swap(self, request: SwapRequest) -> SwapResult:
        if request.back:
            raise PluginError("[swap] got --back for a symbol, expected a prototxt: keep the native symbol file")
        if request.keep:
            raise PluginError("[swap] got --keep for a symbol, expected outputs of the symbol: those stay visible")
        if request.native:
            raise PluginError("[swap] got --native for a symbol, expected a prototxt: MXNet has no C++ layers")
        mxnet, swap_symbol = symbols.framework("swap a symbol")
        symbol = symbols.load(mxnet, request.source)
        selection = Selection(request.types, request.names, request.exclude)
        options = {"regions": request.regions, "frozen": request.frozen, "precision": request.precision}
        new, report = swap_symbol(symbol, select=selection, **options)
        text = new.tojson()
        if request.target is not None:
            write_models({request.target: text.encode()}, {request.source}, MARKS, request.force)
            text = ""
        return SwapResult(str(report), len(report.replaced), text)

    def check(self, model: Path, options: argparse.Namespace) -> Task:
        arguments = {"path": str(model), "shapes": options.shapes, "repeats": options.repeats}
        return with_regions(Task("clgraft.plugins.mxnet.check", arguments), options.regions)

    def problems(self, model: Path, shapes: Mapping[str, Sequence[int]], training: bool) -> Task:
        arguments = {"path": str(model), "shapes": dict(shapes), "training": training}
        return Task("clgraft.plugins.mxnet.tune", arguments)

    def peers(self) -> Sequence[Peer]:
        return [
            Peer(
                "mxnet",
                "mxnet",
                "clgraft.plugins.mxnet.bench_operators",
                ("alexnet", "resnet18", "resnet50", "vgg16", "mobilenet", "mobilenetv2"),
                "clgraft.plugins.mxnet.bench_nets",
                thread_variables=("OMP_NUM_THREADS",),
            )
        ]


PLUGIN = MXNetPlugin()
