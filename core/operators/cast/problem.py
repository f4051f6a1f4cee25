"""The problem of numbers that become another type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.problem import DTYPE_WORDS, DTYPES, Argument, Gradient, Problem, expect_in_numpy
from clgraft.core.problem.text import Choice, Entry, Number

WORDS = {**DTYPE_WORDS, "i32": "int32", "u8": "uint8"}
WORD_OF_TYPE = {dtype: word for word, dtype in WORDS.items()}


@dataclass(frozen=True)
class CastProblem(Problem):
    """``x -> y``, the same numbers in another type.

    Parameters
    ----------
    count : int
        Number of elements.
    source, target : str
        ``float32``, ``float16``, ``bfloat16``, ``float64``, ``int32`` or ``uint8``.

    Notes
    -----
    Real numbers are rounded to the nearest one. They lose their fraction where they become whole numbers; numbers
    outside of the range become its nearest end, and NaN becomes 0.

    Raises
    ------
    ProblemError
        If a type is unknown.
    """

    kind: ClassVar[str] = "cast"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        Number("n", "count"),
        Choice("source", {f"from_{word}": dtype for word, dtype in WORDS.items()}),
        Choice("target", {f"to_{word}": dtype for word, dtype in WORDS.items()}),
    )
    examples: ClassVar[tuple[str, ...]] = (
        "n1001 from_f32 to_f16",
        "n1001 from_f32 to_i32",
        "n1001 from_u8 to_f32",
        "n1001 from_f32 to_bf16",
    )

    count: int
    source: str
    target: str

    def __post_init__(self) -> None:
        self._take_counts(count=0)
        for name in ("source", "target"):
            value = getattr(self, name)
            self._expect(value in WORD_OF_TYPE, name, repr(value), f"one of {tuple(WORD_OF_TYPE)}")
            expect_in_numpy(self.kind, value)

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """The type that a device needs beyond float32."""
        return "float64" if "float64" in (self.source, self.target) else "float32"

    def arguments(self) -> tuple[Argument, ...]:
        return Argument("x", "in", (self.count,), self.source), Argument("y", "out", (self.count,), self.target)

    def gradients(self) -> tuple[Gradient, ...]:
        if not (self.source in DTYPES and self.target in DTYPES):
            return ()
        return (Gradient(CastProblem(self.count, self.target, self.source), {"x": "dy", "y": "dx"}),)

    @property
    def terms(self) -> int:
        """None: nothing is added."""
        return 0

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": (100 * rng.uniform(0, 1, self.count)).astype(self.source)}

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        x = np.asarray(arrays["x"], np.float64)
        if self.target in DTYPES:
            return {"y": x}
        ends = np.iinfo(self.target)
        return {"y": np.trunc(np.clip(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf), ends.min, ends.max))}
