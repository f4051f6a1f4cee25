"""What clgraft can be grafted into, and the command line over it."""

from __future__ import annotations

from clgraft.plugins.registry import Plugin, SwapRequest, SwapResult, find, plugins, register

__all__ = ["Plugin", "SwapRequest", "SwapResult", "find", "plugins", "register"]
