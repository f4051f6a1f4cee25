"""What goes wrong with models."""

from __future__ import annotations

from collections.abc import Sequence

from clgraft.core.errors import ClgraftError

MOST_SHOWN = 20


class ModelError(ClgraftError, ValueError):
    """Raised for a model that cannot be read, or arrays that do not fit it."""


class UnsupportedOperators(ModelError):
    """Raised for a valid model with operators or layers that clgraft does not run.

    Parameters
    ----------
    kind : str
        What the model is, at the beginning of the text.
    operators : sequence of str
        Each one's type, name and reason.

    Attributes
    ----------
    operators : tuple of str
    """

    def __init__(self, kind: str, operators: Sequence[str]) -> None:
        self.operators = tuple(dict.fromkeys(operators))
        shown = "; ".join(self.operators[:MOST_SHOWN]) + ("; ..." if len(self.operators) > MOST_SHOWN else "")
        super().__init__(
            f"[{kind}] got {len(self.operators)} operators that clgraft does not run, expected none: {shown}"
        )
