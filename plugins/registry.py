"""Finds the plugins: ours and those that other distributions declare as entry points."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.files import FileError
from clgraft.plugins.plugin import Plugin

GROUP = "clgraft.plugins"
_log = logging.getLogger("clgraft")
_registered: dict[str, Plugin] = {}
_loaded: list[bool] = []


def register(plugin: Plugin) -> None:
    """Add a plugin; one of the same name is replaced."""
    _registered[plugin.name] = plugin


def plugins() -> list[Plugin]:
    """Return all plugins: ours first, then the others, each by name.

    A plugin that cannot be loaded is left out with a warning.
    """
    if not _loaded:
        _loaded.append(True)
        for plugin in (*_ours(), *_declared()):
            if _registered.setdefault(plugin.name, plugin) is not plugin:
                _log.warning("a second plugin named %s (%s) is left out", plugin.name, type(plugin).__module__)
    own = GROUP + "."
    return sorted(_registered.values(), key=lambda plugin: (not type(plugin).__module__.startswith(own), plugin.name))


def find(path: Path, command: str = "swap") -> Plugin:
    """Return the plugin for a model file that a command gets.

    Raises
    ------
    FileError
        When no plugin knows such files.
    """
    for plugin in plugins():
        if plugin.recognises(path):
            return plugin
    models = known_models(swapped=command == "swap")
    raise FileError(f"[{command}] got {path}, expected a model of one of the plugins ({models})")


def known_models(swapped: bool = False) -> str:
    """Return which models the plugins serve, or which of them they swap, for messages."""
    chosen = [plugin for plugin in plugins() if plugin.models and not (swapped and plugin.instead)]
    return "; ".join(f"{plugin.name}: {plugin.models}" for plugin in chosen)


def environment(device: str | None = None) -> dict[str, str]:
    """Return the process's environment with what the plugins' frameworks need; the user's own values stay.

    With `device` it names that for clgraft.
    """
    needed: dict[str, str] = {}
    for plugin in plugins():
        needed.update(plugin.environment)
    return {**needed, **os.environ, **({settings.DEVICE.name: device} if device else {})}


def _ours() -> Iterator[Plugin]:
    """Yield the plugins in this folder, which a checkout has without being installed."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.ispkg and module.name != "command_line":
            yield importlib.import_module(f"{GROUP}.{module.name}.plugin").PLUGIN


def _declared() -> Iterator[Plugin]:
    for entry in _entry_points():
        try:
            plugin = entry.load()
        except Exception as error:  # another distribution's fault must not disable ours
            _log.warning("plugin %s (%s) cannot be loaded: %r", entry.name, entry.value, error)
            continue
        if not isinstance(plugin, Plugin) or not plugin.name:
            _log.warning(
                "plugin %s (%s) is left out: got %s, expected a named instance of clgraft.plugins.Plugin",
                entry.name,
                entry.value,
                type(plugin).__name__,
            )
            continue
        yield plugin


def _entry_points() -> Any:
    if sys.version_info >= (3, 10):
        return metadata.entry_points(group=GROUP)
    return metadata.entry_points().get(GROUP, ())
