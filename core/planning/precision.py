"""How exactly matrix units multiply float32: ``CLGRAFT_PRECISION``."""

from __future__ import annotations

from clgraft.core import settings

FLOAT32, TF32 = settings.PRECISIONS


def precision() -> str:
    """Return the precision of products of float32: ``float32`` by default, or ``tf32``, which rounds operands to TF32.

    Raises
    ------
    ArgumentError
        If ``CLGRAFT_PRECISION`` holds another word.
    """
    word: str = settings.PRECISION.value()
    return word
