"""Formulas as text: other names for what they read, and the programs that they become.

A formula is an expression. Declarations that it needs stand in front of it: ``real s = exp(x); s / (1 + s)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from clgraft.core.operators.pointwise.expression import IDENTIFIER


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a formula in which names are replaced by others, or by numbers and formulas in parentheses."""
    return IDENTIFIER.sub(lambda found: names.get(found[0], found[0]), text)


def names_in(text: str) -> frozenset[str]:
    """Return the names in a formula."""
    return frozenset(IDENTIFIER.findall(text))


def split(text: str) -> tuple[str, str]:
    """Return a formula's declarations, with a space after them, and its expression."""
    before, mark, value = text.rpartition("; ")
    return before + mark, value


def assigned(target: str, text: str) -> str:
    """Return the statements that assign a formula's value."""
    before, value = split(text)
    return f"{before}{target} = {value};"
