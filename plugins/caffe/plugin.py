"""Caffe in the registry: prototxt files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clgraft.caffe_layers import swap
from clgraft.caffe_layers.swap import Report
from clgraft.caffe_layers.swap.storage import read_text
from clgraft.core.files import STDIN, is_stream
from clgraft.plugins.caffe import run, train
from clgraft.plugins.plugin import Peer, Plugin, PluginError, SwapRequest, SwapResult, Task

_STDOUT = (STDIN, "/dev/stdout")


class CaffePlugin(Plugin):
    """Nets (train/val, deploy) and solvers in text form; also from standard input. Caffe is not needed to swap them."""

    name = "caffe"
    models = "a net's or a solver's .prototxt"
    examples = (
        "clgraft check train_val.prototxt",
        "clgraft swap train_val.prototxt -o train_val_ocl.prototxt",
        "clgraft swap train_val.prototxt -o train_val_ocl.prototxt --regions --keep fc7",
        "clgraft swap solver.prototxt -o solver_ocl.prototxt --types Convolution,ReLU",
        "clgraft swap train_val_ocl.prototxt --back -o train_val.prototxt",
        "clgraft tune train_val.prototxt",
        "clgraft train -solver solver.prototxt",
        "clgraft train -solver solver.prototxt -snapshot net_iter_1000.solverstate",
    )
    # the pure Python protobuf, which Caffe's generated classes need, and no log of every layer
    environment = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_minloglevel": "2"}  # noqa: RUF012

    def recognises(self, path: Path) -> bool:
        named = path.suffix in (".prototxt", ".pbtxt", ".pt") or path.name.endswith(".prototxt.txt")
        return named or (not path.suffix and is_stream(path))

    def swap(self, request: SwapRequest) -> SwapResult:
        choice = {"types": request.types, "names": request.names, "exclude": request.exclude}
        chosen: dict[str, Any] = {**choice, "regions": request.regions, "keep": request.keep}
        chosen |= {"native": request.native, "precision": request.precision}
        if request.back and (request.regions or request.native or any(value is not None for value in choice.values())):
            raise PluginError("[swap] got a choice of layers with --back, expected to restore them all")
        if request.frozen:
            raise PluginError("[swap] got --frozen for a prototxt, expected a symbol: Caffe's regions cannot have it")
        force = request.force
        if request.target is not None and str(request.target) not in _STDOUT:
            if request.back:
                reports = swap.restore_file(request.source, request.target, force=force)
            else:
                reports = swap.swap_file(request.source, request.target, root=request.root, force=force, **chosen)
            text = ""
        else:
            text, reports = self._as_text(request, chosen)
        changed = sum(len(report.swapped) for report in reports)
        report = "\n\n".join(map(str, reports))
        if request.native and changed:
            report += (
                "\nonly processes with clgraft's C++ layers know these types: clgraft caffe, or import "
                "clgraft.caffe_layers.native"
            )
        return SwapResult(report, changed, text)

    def add_check_arguments(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument("--phase", choices=["train", "test"], default="train", help="of a net (default: train)")

    def check(self, model: Path, options: argparse.Namespace) -> Task:
        _refuse_shapes(model, options.shapes)
        arguments = {"path": str(model), "phase": options.phase, "repeats": options.repeats}
        module = "clgraft.plugins.caffe.check_regions" if options.regions else "clgraft.plugins.caffe.check"
        return Task(module, arguments)

    def problems(self, model: Path, shapes: Mapping[str, Sequence[int]], training: bool) -> Task:
        _refuse_shapes(model, shapes)
        return Task("clgraft.plugins.caffe.tune", {"path": str(model), "training": training})

    def peers(self) -> Sequence[Peer]:
        return [
            Peer(
                "caffe",
                "caffe",
                "clgraft.plugins.caffe.bench_layers",
                ("resnet18", "resnet50", "mobilenet"),
                "clgraft.plugins.caffe.bench_nets",
                thread_variables=("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
            )
        ]

    def add_commands(self, commands: Any) -> None:
        """Add `clgraft caffe` and `clgraft train` to the subparsers of the command line."""
        run.add_command(commands)
        train.add_command(commands)

    @staticmethod
    def _as_text(request: SwapRequest, chosen: dict[str, Any]) -> tuple[str, list[Report]]:
        native = read_text(request.source)
        with swap.naming(request.source):
            if swap.is_solver(native):
                raise PluginError(
                    f"[swap] got the solver {request.source}, expected -o: its nets are written next to it"
                )
            if request.back:
                text, report = swap.swap_back(native)
            else:
                text, report = swap.swap_net(native, **chosen)
        return text, [report]


def _refuse_shapes(model: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    if shapes:
        raise PluginError(f"[caffe] got --shape for {model}, expected none: a net holds the shapes of its inputs")


PLUGIN = CaffePlugin()
