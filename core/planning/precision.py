"""How exactly matrix units multiply float32: ``CLGRAFT_PRECISION``."""

from __future__ import annotations

import os

from clgraft.core.errors import ArgumentError

VARIABLE = "CLGRAFT_PRECISION"
FLOAT32, TF32 = "float32", "tf32"


def precision() -> str:
    """Return the precision of products of float32: ``float32`` by default, or ``tf32``, which rounds operands to TF32.

    Raises
    ------
    ArgumentError
        If ``CLGRAFT_PRECISION`` holds another word.
    """
    word = os.environ.get(VARIABLE, "").strip().lower() or FLOAT32
    if word not in (FLOAT32, TF32):
        raise ArgumentError(f"[precision] got {VARIABLE}={word!r}, expected {FLOAT32!r} or {TF32!r}")
    return word
