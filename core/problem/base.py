"""What every problem is: a frozen description of one operator call that prints itself and can be read back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clgraft.core.errors import ProblemError

DTYPES = ("float32", "float16", "float64")
DTYPE_WORDS = {"f32": "float32", "f16": "float16", "f64": "float64"}
WORD_OF_DTYPE = {dtype: word for word, dtype in DTYPE_WORDS.items()}


def in_3d(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Lengthen a 1-D or 2-D size to three axes."""
    return (fill,) * (3 - len(values)) + tuple(values)


@dataclass(frozen=True)
class Argument:
    """One buffer of a problem: its name, role (``in``, ``out``, ``inout``), shape and dtype."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * np.dtype(self.dtype).itemsize


class Problem:
    """Base class of problems.

    A subclass is a frozen dataclass with a class variable `kind`, the first word of its text, and defines
    `from_text`, `__str__`, `arguments` and, where it has them, `scalars`.
    """

    kind: ClassVar[str]
    dtype: str
    _kinds: ClassVar[dict[str, type[Problem]]] = {}

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        if "kind" in cls.__dict__:
            Problem._kinds[cls.kind] = cls

    @classmethod
    def from_text(cls, text: str) -> Problem:
        """Read a problem from its text without the kind."""
        raise NotImplementedError

    def arguments(self) -> tuple[Argument, ...]:
        """Give the buffers in the order in which a run takes them."""
        raise NotImplementedError

    def scalars(self) -> tuple[str, ...]:
        """Give the names of the scalars that every run needs."""
        return ()

    def _expect(self, good: bool, name: str, got: object, expected: str) -> None:
        if not good:
            raise ProblemError(f"[{self.kind}] got {name} {got}, expected {expected}")

    def _expect_words(self, **known: Sequence[str]) -> None:
        """Refuse a dtype, or another word, that is none of the known ones."""
        for name, words in {**known, "dtype": DTYPES}.items():
            value = getattr(self, name)
            self._expect(value in words, name, repr(value), f"one of {tuple(words)}")

    def _take_counts(self, **least: int) -> None:
        """Make counts whole numbers, and refuse those below the least."""
        for name, low in least.items():
            value = int(getattr(self, name))
            object.__setattr__(self, name, value)
            self._expect(value >= low, name, value, f"at least {low}")

    def _weighted(self, w: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...], bias: bool) -> tuple[Argument, ...]:
        """Give the buffers of a layer with weights w and a bias per channel of y, in the problem's direction."""
        b = (y[1],)
        shapes = {"x": x, "w": w, "b": b, "y": y, "dx": x, "dw": w, "db": b, "dy": y}
        direction: str = self.direction  # type: ignore[attr-defined]
        names = {"forward": "x w b y" if bias else "x w y", "backward_data": "dy w dx", "backward_bias": "dy db"}
        *inputs, output = names.get(direction, "x dy dw").split()
        return (
            *(Argument(name, "in", shapes[name], self.dtype) for name in inputs),
            Argument(output, "out", shapes[output], self.dtype),
        )


def parse(text: str) -> Problem:
    """Read a problem from its line of text.

    Parameters
    ----------
    text : str
        Such as ``"conv forward n8 ic64 ih56 iw56 oc64 kh3 kw3 ph1 pw1"``; what ``str(problem)`` gives.

    Raises
    ------
    ProblemError
        If the kind is unknown, a word cannot be read, or the shapes cannot be.
    """
    kind, _, rest = text.strip().partition(" ")
    if kind not in Problem._kinds:
        raise ProblemError(f"[problem] got kind {kind!r}, expected one of {sorted(Problem._kinds)}")
    return Problem._kinds[kind].from_text(rest)
