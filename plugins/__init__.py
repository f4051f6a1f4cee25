"""The frameworks that clgraft works in, and the command line over it."""

from __future__ import annotations

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
