"""How exactly matrix units multiply float32, and the types of graphs: ``CLGRAFT_PRECISION``."""

from __future__ import annotations

from clgraft.core import settings
from clgraft.core.errors import ArgumentError, hint

FLOAT32, TF32 = settings.PRODUCTS


def precision() -> str:
    """Return the precision of products of float32: ``float32`` by default, or ``tf32``, which rounds operands to TF32.

    Raises
    ------
    SettingError
        If ``CLGRAFT_PRECISION`` holds another word.
    """
    word: str = settings.PRECISION.value()
    return word if word in settings.PRODUCTS else FLOAT32


def mixed_precision(word: str | None = None) -> str | None:
    """Return the type of 16 bits in which graphs of float32 compute their products; None for float32.

    Parameters
    ----------
    word : str, optional
        ``float32``, ``float16`` or ``bfloat16``; by default what ``CLGRAFT_PRECISION`` says.

    Raises
    ------
    ArgumentError
        If it is another word.
    """
    found = settings.PRECISION.value() if word is None else word
    if word is not None and word not in (FLOAT32, *settings.MIXED):
        known = (FLOAT32, *settings.MIXED)
        raise ArgumentError(f"[precision] got {word!r}, expected one of {known}{hint(str(word), known)}")
    return str(found) if found in settings.MIXED else None
