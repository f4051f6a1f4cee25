"""Drivers do not survive `fork()`: the process that first used OpenCL is the only one that may go on."""

from __future__ import annotations

import os

from clgraft.core import abi
from clgraft.core.errors import ExecutionError

_owner: list[int] = []


def owner() -> int | None:
    """Return the process that first made a context; None if there is none yet."""
    return _owner[0] if _owner else None


def refuse_after_fork() -> None:
    """Raise `ExecutionError` in a child process of the one that first used OpenCL."""
    if _owner and _owner[0] != os.getpid():
        raise ExecutionError(
            f"[context] got process {os.getpid()}, a child of {_owner[0]} by fork(), expected the process that"
            " first used OpenCL: drivers do not survive fork(); start workers with 'spawn' or before the first use",
            abi.lib.CLG_FORKED,
        )
    if not _owner:
        _owner.append(os.getpid())
