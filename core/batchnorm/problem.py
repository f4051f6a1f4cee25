"""The batch norm problem: statistics per channel, and what is done with them, in both directions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.errors import ProblemError
from clgraft.core.problem import WORD_OF_DTYPE, Argument, Problem
from clgraft.core.problem_words import read_words

DIRECTIONS = ("forward_training", "forward_inference", "backward_training", "backward_inference", "update_statistics")
WORD = re.compile(r"([ncs])(\d+)")


@dataclass(frozen=True)
class BatchNormProblem(Problem):
    """Batch norm (Ioffe and Szegedy 2015) of (batch, channels, pixels).

    Parameters
    ----------
    direction : str
        ``forward_training``: x gamma beta -> y mean var, with the batch's statistics;
        ``forward_inference``: x gamma beta mean var -> y;
        ``backward_training``: x dy gamma mean var -> dx dgamma dbeta, through the batch's statistics;
        ``backward_inference``: the same arguments, the statistics being constants;
        ``update_statistics``: mean var -> running_mean running_var.
    batch, channels, pixels : int
        Sizes; `pixels` is the product of the spatial sizes.
    dtype : str
        ``float32``, ``float16`` (storage) or ``float64``.

    Notes
    -----
    `var` is the biased variance. Scalar ``eps`` is added to it; update_statistics has the scalars ``keep``,
    ``add_mean`` and ``add_var``: running_mean = keep * running_mean + add_mean * mean, and the same for var.
    Without any element (batch or pixels 0) the batch's mean and variance are 0.

    Raises
    ------
    ProblemError
        If the sizes cannot be.
    """

    kind: ClassVar[str] = "batchnorm"

    direction: str
    batch: int
    channels: int
    pixels: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._take_counts(batch=0, channels=1, pixels=0)
        self._expect_words(direction=DIRECTIONS)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of x."""
        return (self.batch, self.channels, self.pixels)

    def arguments(self) -> tuple[Argument, ...]:
        table = {
            "forward_training": ("x gamma beta", "y mean var", "out"),
            "forward_inference": ("x gamma beta mean var", "y", "out"),
            "backward_training": ("x dy gamma mean var", "dx dgamma dbeta", "out"),
            "backward_inference": ("x dy gamma mean var", "dx dgamma dbeta", "out"),
            "update_statistics": ("mean var", "running_mean running_var", "inout"),
        }
        inputs, outputs, role = table[self.direction]

        def shape(name: str) -> tuple[int, ...]:
            return self.shape if name in ("x", "y", "dx", "dy") else (self.channels,)

        return tuple(Argument(name, "in", shape(name), self.dtype) for name in inputs.split()) + tuple(
            Argument(name, role, shape(name), self.dtype) for name in outputs.split()
        )

    def scalars(self) -> tuple[str, ...]:
        return ("keep", "add_mean", "add_var") if self.direction == "update_statistics" else ("eps",)

    def __str__(self) -> str:
        words = [self.kind, self.direction]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        return " ".join((*words, f"n{self.batch}", f"c{self.channels}", f"s{self.pixels}"))

    @classmethod
    def from_text(cls, text: str) -> BatchNormProblem:
        expected = "a direction, a dtype, n8, c64 or s3136"
        words = read_words(cls.kind, text, WORD, expected, {"direction": DIRECTIONS})
        if "direction" not in words.choices:
            raise ProblemError(f"[batchnorm] got {text!r}, expected one of {DIRECTIONS}")
        return cls(words.choices["direction"], words.take("n"), words.take("c"), words.take("s"), words.dtype)
