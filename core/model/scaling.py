"""Scales of losses, with which gradients of 16 bits neither vanish nor become infinite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clgraft.core.model.errors import ModelError

FIRST, LARGEST = 2.0**16, 2.0**24
GROWTH, BACKOFF = 2.0, 0.5
INTERVAL = 2000  # steps without an infinity after which the scale grows
MIXED = "float16"  # whose range is too small for gradients


class LossScale:
    """A factor of losses, as PyTorch's GradScaler has it: it grows after many good steps, and shrinks after a bad one.

    Parameters
    ----------
    value : float
        The first factor. Powers of two lose no digits.
    follows : bool
        Whether it changes.

    Attributes
    ----------
    value : float
    skipped : int
        Steps with infinite gradients.
    """

    def __init__(self, value: float = FIRST, follows: bool = True) -> None:
        self.value, self._follows = value, follows
        self.skipped = self._good = 0

    @classmethod
    def of(cls, kind: str, mixed: str | None, given: float | None) -> LossScale | None:
        """Return the scale for a type of products and a given factor; None for none."""
        if given is None:
            return cls() if mixed == MIXED else None
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < np.inf:
            raise ModelError(f"[{kind}] got loss_scale {given!r}, expected a positive number")
        return cls(float(given), follows=False)

    def unscaled(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Return an optimizer's scalars for gradients that are multiplied by the factor."""
        found = {**scalars, "rescale": scalars["rescale"] / self.value}
        if "most" in found:
            found["most"] *= self.value
        return found

    def follow(self, good: bool) -> None:
        """Take the next factor after a step."""
        self.skipped += not good
        if not self._follows:
            return
        self._good = self._good + 1 if good else 0
        if not good:
            self.value = max(1.0, self.value * BACKOFF)
        elif self._good == INTERVAL:
            self.value, self._good = min(LARGEST, self.value * GROWTH), 0

    @property
    def state(self) -> np.ndarray:
        """What a scale goes on from."""
        return np.array([self.value, self._good, self.skipped], np.float64)

    @state.setter
    def state(self, found: np.ndarray) -> None:
        if found.shape != (3,) or not np.isfinite(found).all() or not found[0] > 0:
            raise ModelError(f"[loss scale] got state {found}, expected a positive factor and two counts")
        value, self._good, self.skipped = float(found[0]), int(found[1]), int(found[2])
        if self._follows:
            self.value = value
