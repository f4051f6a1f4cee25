"""MXNet in the registry: symbol files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clgraft.plugins.registry import PluginError, SwapRequest, SwapResult


class MXNetPlugin:
    """Symbols saved as JSON; parameters load into the swapped symbol unchanged."""

    name = "mxnet"
    models = "a symbol's .json"

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".json"

    def swap(self, request: SwapRequest) -> SwapResult:
        if request.back:
            raise PluginError("[swap] got --back for a symbol, expected a prototxt: keep the native symbol file")
        mxnet, swap_symbol = _framework()
        if not request.source.is_file():
            raise PluginError(f"[swap] got {request.source}, which is not a file")
        if request.target is not None and request.target.resolve() == request.source.resolve():
            raise PluginError(f"[swap] got {request.target} to write to, expected a file other than the one read")
        try:
            symbol = mxnet.sym.load(str(request.source))
        except mxnet.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise PluginError(f"[swap] got {request.source}, which MXNet cannot load: {reason}") from None
        new, report = swap_symbol(symbol, **_selection(request))
        text = ""
        if request.target is None:
            text = new.tojson()
        else:
            new.save(str(request.target))
        return SwapResult(str(report), len(report.replaced), text)


def _framework() -> tuple[Any, Any]:
    try:
        import mxnet
        from clgraft.mxnet_ops import swap_symbol
    except ImportError as error:
        raise PluginError(f"[swap] MXNet is needed to swap a symbol and cannot be imported: {error}") from None
    return mxnet, swap_symbol


def _selection(request: SwapRequest) -> dict[str, Any]:
    return {}


PLUGIN = MXNetPlugin()
