"""Modules of packages whose own module imports a framework, without that framework."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def bare(package: str) -> Iterator[None]:
    """Have modules of a package imported in the context without the package's own module.

    Python runs that one first. While the context lasts, an empty module with the package's folder stands in for it.
    What was imported stays: an import of the package itself, later, runs its module and finds the others as they are.

    Parameters
    ----------
    package : str
        Such as ``clgraft.mxnet_ops``. If it is imported already nothing happens.

    Notes
    -----
    Another thread that imports the package itself in that time gets the empty module.
    """
    with _lock:
        if package in sys.modules:
            yield
            return
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(f"[models] got no package {package}, expected it to be installed", name=package)
        stand_in = importlib.util.module_from_spec(spec)
        sys.modules[package] = stand_in
        try:
            yield
        finally:
            if sys.modules.get(package) is stand_in:
                del sys.modules[package]
