"""Arithmetic of sizes."""

from __future__ import annotations


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the smallest whole number that is not below ``dividend / divisor``."""
    return -(-dividend // divisor)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a number."""
    return ceil_div(number, multiple) * multiple


def reads_as_number(word: str) -> bool:
    """Return whether a word is a number as text, as ``1e-5``, ``inf`` and ``NaN`` are: it cannot be a scalar's name."""
    try:
        float(word)
    except ValueError:
        return False
    return True
