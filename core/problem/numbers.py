"""Arithmetic of sizes."""

from __future__ import annotations


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the smallest whole number that is not below ``dividend / divisor``."""
    return -(-dividend // divisor)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a number."""
    return ceil_div(number, multiple) * multiple
