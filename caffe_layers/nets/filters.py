"""Caffe's Filter in a net without Caffe: rows that the last bottom chooses, so many as only elements tell."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.model import Chosen, ModelError
from clgraft.core.nn.builder import Tensor


def filtered(names: Sequence[str], bottoms: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Chosen]]:
    """Return the tops as the graph has them, the whole bottoms, and which of their rows a user gets.

    Parameters
    ----------
    names : sequence of str
        Of the tops.
    bottoms : sequence of Tensor
        One for each top, and the selector (rows, 1, ...): rows with 0 are left out.

    Raises
    ------
    ModelError
        If they do not fit each other.
    """
    *tops, selector = bottoms
    _expect(bool(tops) and len(tops) == len(names), f"{len(bottoms)} bottoms", f"{len(names) + 1}")
    rows = selector.shape[:1]
    alone = bool(rows) and selector.size == rows[0]
    _expect(alone, f"a selector of shape {selector.shape}", "one number for each row")
    for top in tops:
        _expect(top.shape[:1] == rows, f"shape {top.shape}", f"{rows[0]} rows, as the selector has numbers")
    return tops, {name: Chosen(selector, 0) for name in names}


def _expect(good: bool, got: str, expected: str) -> None:
    if not good:
        raise ModelError(f"[filter] got {got}, expected {expected}")
