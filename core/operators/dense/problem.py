"""The dense layer's problem: a product of a batch of rows with a matrix of weights, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.operators.dense.reference import multiply
from clgraft.core.problem import Argument, Gradient, Problem, in_float64
from clgraft.core.problem.text import DTYPE, Entry, Number, direction_word

DIRECTIONS = ("forward", "backward_data", "backward_weight", "backward_bias")
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class DenseProblem(Problem):
    """A dense (fully connected, inner product) layer in one direction: y = x w^T + b.

    Parameters
    ----------
    direction : str
        ``forward``: ``x w [b] -> y``; ``backward_data``: ``dy w -> dx``; ``backward_weight``: ``x dy -> dw``;
        ``backward_bias``: ``dy -> db``.
    batch, inputs, outputs : int
        x is (batch, inputs), y (batch, outputs), w (outputs, inputs).
    transposed : bool
        Whether w is (inputs, outputs) instead.
    bias : bool
        Whether the forward direction adds a bias.
    dtype : str
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.

    Raises
    ------
    ProblemError
        If the numbers describe no dense layer.
    """

    kind: ClassVar[str] = "dense"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS),
        DTYPE,
        Number("n", "batch"),
        Number("i", "inputs"),
        Number("o", "outputs"),
        Number("t", "transposed", 0),
        Number("b", "bias", 0),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    per_image: ClassVar[tuple[str, ...]] = ("forward",)
    apart: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ("n", "i", "o")
    minor: ClassVar[tuple[str, ...]] = ("b",)
    examples: ClassVar[tuple[str, ...]] = ("n8 i257 o129 b1", "n1 i1000 o60 b1", "n70 i120 o50 b1", "n8 i130 o70 t1 b1")

    direction: str
    batch: int
    inputs: int
    outputs: int
    transposed: bool = False
    bias: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("batch", "inputs", "outputs"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "transposed", bool(self.transposed) and self.direction != "backward_bias")
        object.__setattr__(self, "bias", bool(self.bias) and self.direction == "forward")
        self._expect_words(direction=DIRECTIONS)
        for name, low in (("batch", 0), ("inputs", 1), ("outputs", 1)):
            value = getattr(self, name)
            self._expect(low <= value <= LARGEST, name, value, f"{low} to {LARGEST}")

    @property
    def flops(self) -> int:
        """Multiply-adds, counted as two operations."""
        return 2 * self.batch * self.inputs * self.outputs

    @property
    def operations(self) -> int:
        """As `flops`; the gradient of the bias adds up dy."""
        return self.batch * self.outputs if self.direction == "backward_bias" else self.flops

    @property
    def terms(self) -> int:
        """Number of products that one element of the result sums."""
        return {"forward": self.inputs, "backward_data": self.outputs}.get(self.direction, self.batch)

    def gradients(self) -> tuple[Gradient, ...]:
        if self.direction != "forward":
            return super().gradients()
        directions = ("backward_data", "backward_weight", *(("backward_bias",) if self.bias else ()))
        return tuple(Gradient.of(self.with_direction(direction)) for direction in directions)

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        return {self.arguments()[-1].name: multiply(self, wide)}

    def arguments(self) -> tuple[Argument, ...]:
        x, y = (self.batch, self.inputs), (self.batch, self.outputs)
        w = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        return self._weighted(w, x, y, self.outputs, self.bias)
