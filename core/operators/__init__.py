"""The operators: a folder for each, with its problems, its implementations and its reference."""

from __future__ import annotations

import importlib
import pkgutil

# every folder registers its problems and implementations when it is imported
for _folder in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_folder.name}")
