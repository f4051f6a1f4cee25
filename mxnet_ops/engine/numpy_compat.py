"""Lets MXNet 1.9.1 be imported with NumPy 1.24 to 1.26, the only ones for Python 3.12.

MXNet names scalar types by aliases that NumPy 1.24 removed. They are put back, as what they were: Python's own types.
"""

from __future__ import annotations

import warnings

import numpy as np

ALIASES = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}


def restore_aliases() -> None:
    """Put back the aliases that this NumPy lacks; nothing that is there is touched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in ALIASES.items():
            if not hasattr(np, name):
                setattr(np, name, kind)


restore_aliases()
