"""The table of operators: each module defines some in terms of the core's problems."""

from __future__ import annotations

import importlib
import pkgutil


def fill() -> None:
    """Import every module, which adds its operators to the table."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
