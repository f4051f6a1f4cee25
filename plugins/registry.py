"""The framework plugins: which files each one swaps, and how. Their frameworks are imported only when used."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clgraft.core.errors import ClgraftError


class PluginError(ClgraftError, ValueError):
    """A file or an option that no plugin, or not this one, can serve."""


@dataclass(frozen=True)
class SwapRequest:
    """What a user asked for.

    Attributes
    ----------
    source : Path
        The model.
    target : Path or None
        Where the result goes; None asks for its text.
    types, names, exclude : sequence of str or None
        Which operators, in the framework's own words; None means all.
    back : bool
        Restore the native model.
    root : Path or None
        Where relative paths inside the model start; the working directory by default.
    force : bool
        Overwrite files that clgraft did not write.
    """

    source: Path
    target: Path | None = None
    types: Sequence[str] | None = None
    names: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    back: bool = False
    root: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class SwapResult:
    """The report to print, how many operators changed, and the new text if no target was given."""

    report: str
    changed: int
    text: str = ""


class Plugin(Protocol):
    """A framework's side of swap.

    Attributes
    ----------
    name : str
        The framework.
    models : str
        What can be swapped, for the command line's help.
    checker : str
        The module whose `rows` checks a model (see `command_line.check.runner`); empty if there is none.
    """

    name: str
    models: str
    checker: str

    def recognises(self, path: Path) -> bool:
        """Tell from a path alone whether the file is this framework's."""

    def swap(self, request: SwapRequest) -> SwapResult:
        """Swap a model, or restore it; raises `ClgraftError`."""


_BUILT_IN = {"caffe": "clgraft.plugins.caffe", "mxnet": "clgraft.plugins.mxnet"}
_registered: dict[str, Plugin] = {}


def register(plugin: Plugin) -> None:
    """Add a plugin; one of the same name is replaced."""
    _registered[plugin.name] = plugin


def plugins() -> list[Plugin]:
    """Return all plugins, the built-in ones first."""
    for name, module in _BUILT_IN.items():
        if name not in _registered:
            register(importlib.import_module(module).PLUGIN)
    return [_registered[name] for name in sorted(_registered, key=lambda name: (name not in _BUILT_IN, name))]


def find(path: Path) -> Plugin:
    """Return the plugin for a model file.

    Raises
    ------
    PluginError
        When no plugin knows such files.
    """
    for plugin in plugins():
        if plugin.recognises(path):
            return plugin
    known = "; ".join(f"{plugin.name}: {plugin.models}" for plugin in plugins())
    raise PluginError(f"[swap] got {path}, expected a model of one of the plugins ({known})")
