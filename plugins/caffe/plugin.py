"""Caffe in the registry: prototxt files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clgraft.caffe_layers import swap
from clgraft.caffe_layers.swap import Report
from clgraft.caffe_layers.swap.storage import STDIN, is_stream, read_text
from clgraft.plugins.caffe import run
from clgraft.plugins.registry import PluginError, SwapRequest, SwapResult

_STDOUT = (STDIN, "/dev/stdout")


class CaffePlugin:
    """Nets (train/val, deploy) and solvers in text form; also from standard input. Caffe is not needed to swap them."""

    name = "caffe"
    models = "a net's or a solver's .prototxt"
    checker = "clgraft.plugins.caffe.check"

    def recognises(self, path: Path) -> bool:
        named = path.suffix in (".prototxt", ".pbtxt", ".pt") or path.name.endswith(".prototxt.txt")
        return named or (not path.suffix and is_stream(path))

    def swap(self, request: SwapRequest) -> SwapResult:
        chosen = {"types": request.types, "names": request.names, "exclude": request.exclude}
        if request.back and any(value is not None for value in chosen.values()):
            raise PluginError("[swap] got a choice of layers with --back, expected to restore them all")
        force = request.force
        if request.target is not None and str(request.target) not in _STDOUT:
            if request.back:
                reports = swap.restore_file(request.source, request.target, force=force)
            else:
                reports = swap.swap_file(request.source, request.target, root=request.root, force=force, **chosen)
            text = ""
        else:
            text, reports = self._as_text(request)
        changed = sum(len(report.swapped) for report in reports)
        return SwapResult("\n\n".join(map(str, reports)), changed, text)

    def add_commands(self, commands: Any) -> None:
        """Add `clgraft caffe` to the subparsers of the command line."""
        run.add_command(commands)

    @staticmethod
    def _as_text(request: SwapRequest) -> tuple[str, list[Report]]:
        native = read_text(request.source)
        with swap.naming(request.source):
            if swap.is_solver(native):
                raise PluginError(
                    f"[swap] got the solver {request.source}, expected -o: its nets are written next to it"
                )
            if request.back:
                text, report = swap.swap_back(native)
            else:
                text, report = swap.swap_net(native, types=request.types, names=request.names, exclude=request.exclude)
        return text, [report]


PLUGIN = CaffePlugin()
