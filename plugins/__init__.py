"""The frameworks that clgraft works in, and the command line over it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clgraft.plugins.plugin import Peer, Plugin, PluginError, SwapRequest, SwapResult, Task
    from clgraft.plugins.registry import find, plugins, register

__all__ = [
    "Peer",
    "Plugin",
    "PluginError",
    "SwapRequest",
    "SwapResult",
    "Task",
    "find",
    "plugins",
    "register",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line is inside of this package, and begins at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "registry" if name in ("find", "plugins", "register") else "plugin"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
