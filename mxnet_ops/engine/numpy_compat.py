"""Lets MXNet 1.9.1 be imported with NumPy 1.24 to 1.26, the only ones for Python 3.12, and tells of later ones.

MXNet names scalar types by aliases that NumPy 1.24 removed. They are put back, as what they were: Python's own types.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import numpy as np

from clgraft.core.errors import ClgraftError

FIRST_WITHOUT = 2  # NumPy's first version that MXNet cannot be imported with
REQUIREMENT = "numpy<1.24" if sys.version_info < (3, 12) else "numpy<2"  # of the extra `mxnet` in pyproject.toml
ALIASES = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}


class MXNetImportError(ClgraftError, ImportError):
    """MXNet is installed and cannot be imported."""


@contextlib.contextmanager
def import_explained() -> Iterator[None]:
    """Turn any error of MXNet's import into one that says what failed, and what to do if NumPy is too new for it.

    Raises
    ------
    MXNetImportError
        If MXNet is installed and cannot be imported.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "mxnet":
            raise
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"[mxnet] got {cause}, expected MXNet to be imported with NumPy {np.__version__}"
        if int(np.__version__.split(".")[0]) >= FIRST_WITHOUT:
            text += f", which is too new for it: pip install '{REQUIREMENT}'"
        raise MXNetImportError(text) from error


def restore_aliases() -> None:
    """Put back the aliases that this NumPy lacks; nothing that is there is touched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in ALIASES.items():
            if not hasattr(np, name):
                setattr(np, name, kind)


restore_aliases()
