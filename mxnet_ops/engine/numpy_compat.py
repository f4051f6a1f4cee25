"""Puts back what MXNet 1.9.1 takes from NumPy and newer ones have under other names, and explains what it lacks.

MXNet names scalar types by aliases that NumPy 1.24 removed, constants and functions that NumPy 2 removed, and
functions of finance that raise errors since NumPy 1.20. The aliases are put back as what they were, Python's own types;
the others as NumPy's own successors.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clgraft.core.errors import ClgraftError
from clgraft.core.log import log
from clgraft.mxnet_ops.engine import repairs

ALIASES = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}
CONSTANTS = {
    **{"PZERO": 0.0, "NZERO": -0.0, "PINF": np.inf, "NINF": -np.inf},
    **{"Inf": np.inf, "Infinity": np.inf, "NAN": np.nan, "NaN": np.nan},
}
RENAMED = {
    **{"alltrue": "all", "sometrue": "any", "product": "prod", "cumproduct": "cumprod"},
    **{"round_": "round", "trapz": "trapezoid", "row_stack": "vstack"},
}
FINANCE = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")  # those of numpy_financial that MXNet takes from NumPy


class MXNetImportError(ClgraftError, ImportError):
    """MXNet is installed and cannot be imported."""


def remedy() -> str:
    """Return the command that installs MXNet for this Python and this NumPy."""
    if has_numpy_2() or sys.version_info >= (3, 13):
        return "pip install --no-deps mxnet==1.9.1 && pip install requests"
    return "pip install 'clgraft[mxnet]'"


def has_numpy_2() -> bool:
    """Return whether NumPy is one that pip refuses to install MXNet with."""
    return int(np.__version__.split(".")[0]) >= 2


@contextlib.contextmanager
def import_explained() -> Iterator[None]:
    """Turn any error of MXNet's import into one that says what failed, and what to do.

    Raises
    ------
    MXNetImportError
        If MXNet is installed and cannot be imported.
    ModuleNotFoundError
        If it is not installed; the text says how to do that for this NumPy.
    """
    try:
        yield
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing == "mxnet":
            raise ModuleNotFoundError(f"{error}: {remedy()}", name=missing) from None
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        text = f"[mxnet] got {cause}, expected MXNet to be imported with NumPy {np.__version__}"
        if missing:
            text += f": pip install {missing}"
        elif off := repairs.switched_off():
            text += f"; {repairs.SETTING.name} switches off what it may need: {', '.join(off)}"
        raise MXNetImportError(text) from error


def restore_names() -> list[str]:
    """Put back the names that this NumPy lacks, and return them; nothing that is there is touched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = {name: make for name, make in _makers().items() if not hasattr(np, name)}
        for name, make in missing.items():
            setattr(np, name, make())
        return [*missing, *_restore_finance()]


def _makers() -> dict[str, Callable[[], Any]]:
    """Return what makes each name that may be missing; successors are looked up where one is."""
    makers: dict[str, Callable[[], Any]] = {}
    for name, value in (*ALIASES.items(), *CONSTANTS.items()):
        makers[name] = lambda value=value: value  # type: ignore[misc]
    for name, new in RENAMED.items():
        makers[name] = lambda new=new: getattr(np, new)  # type: ignore[misc]
    makers["in1d"] = lambda: in1d
    makers["msort"] = lambda: msort
    makers["compat"] = lambda: types.SimpleNamespace(basestring=str)
    # for normalize_axis_tuple
    makers["core"] = lambda: types.SimpleNamespace(numeric=np.lib.array_utils)  # type: ignore[attr-defined]
    return makers


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False, **more: Any) -> Any:
    """Compute whether each element of an array is in another, as a vector: `numpy.isin` of its elements."""
    return np.isin(np.ravel(ar1), ar2, assume_unique=assume_unique, invert=invert, **more)


def msort(a: Any) -> Any:
    """Return a copy of an array that is sorted along its first axis: `numpy.sort` there."""
    return np.sort(a, axis=0)


def _restore_finance() -> list[str]:
    """Put back functions of finance: those of numpy_financial, or functions that name it; return what was missing.

    NumPy 1.20 to 1.26 has such functions that raise errors.
    """
    missing = [name for name in FINANCE if not hasattr(np, name)]
    if not missing:
        return []
    try:
        import numpy_financial as finance
    except ImportError:
        finance = None
    for name in missing:
        setattr(np, name, getattr(finance, name, None) or _refusal(name))
    return missing


def _refusal(name: str) -> Callable[..., Any]:
    """Return a function that says where NumPy's went."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"numpy.{name} is in the package numpy_financial now: pip install numpy-financial")

    refuse.__name__ = name
    return refuse


if repairs.wanted("names"):
    restored = restore_names()
    if restored:
        log.info("[mxnet] names put back in NumPy %s: %s", np.__version__, ", ".join(restored))
