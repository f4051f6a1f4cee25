"""MXNet in the registry: symbol files."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clgraft.core.files import write_models
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
        selection = _Selection(request)
        new, report = swap_symbol(symbol, select=selection, regions=request.regions, frozen=request.frozen)
        text = new.tojson()
        if request.target is not None:
            write_models({request.target: text.encode()}, {request.source}, MARKS, request.force)
            text = ""
        notes = [f"note: no operator matches {pattern}" for pattern in sorted(selection.unused)]
        return SwapResult("\n".join([str(report), *notes]), len(report.replaced), text)

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


class _Selection:
    """The user's types, names and exceptions as the function of a node that `swap_symbol` takes."""

    def __init__(self, request: SwapRequest) -> None:
        self.types, self.names, self.exclude = request.types, request.names, request.exclude or ()
        self.unused = {*(self.types or ()), *(self.names or ()), *self.exclude}

    def __call__(self, node: Any) -> bool:
        types = self._found(self.types, lambda pattern: pattern.lower() == node.operator.lower())
        names = self._found(self.names, lambda pattern: _matches(node.name, pattern))
        excluded = self._found(
            self.exclude, lambda pattern: _matches(node.name, pattern) or pattern.lower() == node.operator.lower()
        )
        return types and names and not excluded

    def _found(self, patterns: Sequence[str] | None, fits: Callable[[str], bool]) -> bool:
        if patterns is None:
            return True
        found = {pattern for pattern in patterns if fits(pattern)}
        self.unused -= found
        return bool(found)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


PLUGIN = MXNetPlugin()
