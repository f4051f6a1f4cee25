"""`clgraft.load`: one session for models of every kind, without their frameworks.

The names below are imported when they are first used: a program that loads a model needs no command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["PLUGIN", "load"]
_PLACES = {"PLUGIN": "plugin", "load": "loading"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
