"""Inputs and outputs of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes
    ----------
    name : str
    dtype : str
    shape : tuple of int or str, or None
        A size, or the name of one that is not fixed; None if the model does not say the rank.
    usual : tuple of int, optional
        Sizes that are taken where a user gives none.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    usual: tuple[int, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The usual sizes, or those that the model fixes; None if it leaves some open."""
        if self.usual is not None or self.shape is None:
            return self.usual
        known = tuple(size for size in self.shape if isinstance(size, int))
        return known if len(known) == len(self.shape) else None


def fits(port: Port, shape: Sequence[int]) -> bool:
    """Return whether an input or output may have a shape."""
    if port.shape is None:
        return all(size >= 0 for size in shape)
    sizes = zip(port.shape, shape)
    return len(port.shape) == len(shape) and all(
        size == own or (isinstance(size, str) and own >= 0) for size, own in sizes
    )
