"""ONNX models on the core's graphs: sessions, the backend interface, and the command line's plugin.

The names below are imported when they are first used: the plugin itself does not need the package onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from clgraft.plugins.onnx.plugin import PLUGIN

__all__ = ["PLUGIN", "ClgraftBackend", "OnnxError", "Session", "UnsupportedError"]
_PLACES = {
    "ClgraftBackend": "backend",
    "OnnxError": "errors",
    "Session": "session",
    "UnsupportedError": "errors",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
