"""Errors of clgraft operators, which are MXNet's errors too and say in every mode what was wrong."""

from __future__ import annotations

import functools
import re
import threading
from collections import deque
from typing import Any, Callable

import mxnet as mx
from mxnet._ffi._ctypes import function as _function
from mxnet.base import MXNetError

from clgraft.core import ClgraftError, ProblemError

_met = threading.local()
_interrupts: deque[BaseException] = deque()  # such as KeyboardInterrupt, which are for no thread in particular
_OPERATOR = re.compile(r"Error in operator (\S+?)(?:_ocl)?:")  # without the suffix that guards give


class OperatorError(ProblemError, MXNetError):
    """An attribute, a shape or a dtype that does not fit a clgraft operator."""


_CLASSES: dict[type, type] = {ProblemError: OperatorError}


def last_error() -> Exception | None:
    """Return, once, the error that an answer to MXNet met last in this thread: MXNet's own text does not carry it."""
    error = getattr(_met, "error", None)
    _met.error = None
    return error


def keep_error(error: BaseException) -> None:
    """Keep an error for `last_error`; what is no `Exception` is raised where MXNet's Python reports a failure next."""
    if isinstance(error, Exception):
        _met.error = error
    else:
        _interrupts.append(error)


def _interruptible(original: Callable[[], Exception]) -> Callable[[], BaseException]:
    """Return MXNet's function for the error of a call that failed, which returns an interrupt if that is the reason."""

    @functools.wraps(original)
    def get_last_ffi_error() -> BaseException:
        error = original()
        return _interrupts.popleft() if _interrupts else error

    return get_last_ffi_error


def as_mxnets(error: ClgraftError, place: str = "") -> ClgraftError:
    """Return an error of the same class that is an MXNetError as well, with the same text."""
    if isinstance(error, MXNetError):
        return error
    kind = type(error)
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (kind, MXNetError), {"__module__": __name__})
    return _CLASSES[kind](f"{error}{place}")  # type: ignore[no-any-return]


def telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of MXNet that asks clgraft operators raise their errors."""

    @functools.wraps(function)
    def call(*arguments: Any, **kwargs: Any) -> Any:
        last_error()  # what is left from another call is not this one's
        try:
            return function(*arguments, **kwargs)
        except RuntimeError as failure:  # simple_bind makes one of an MXNetError
            error = last_error()
            if not isinstance(error, ClgraftError):
                raise
            named = _OPERATOR.search(str(failure))
            raise as_mxnets(error, f" (operator {named[1]!r})" if named else "") from failure
        except ClgraftError as error:
            raise as_mxnets(error) from error.__cause__

    return call


def install() -> None:
    """Wrap the functions of MXNet that ask operators for shapes and types, or report failures; once per process."""
    for module in (mx.base, _function):
        if not hasattr(module.get_last_ffi_error, "__wrapped__"):
            module.get_last_ffi_error = _interruptible(module.get_last_ffi_error)
    functions = (
        (
            mx.sym.Symbol,
            ("infer_shape", "infer_shape_partial", "infer_type", "infer_type_partial", "bind", "simple_bind"),
        ),
        (mx.executor.Executor, ("reshape",)),
        (mx.nd.CachedOp, ("__call__",)),
    )
    for kind, names in functions:
        for name in names:
            function = getattr(kind, name)
            if getattr(function, "_tells", None) is None:
                told = telling(function)
                told._tells = True  # type: ignore[attr-defined]
                setattr(kind, name, told)
