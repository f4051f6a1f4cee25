"""The dropout problem: elements changed by random numbers that follow from a key, so that backward draws them again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.errors import ProblemError
from clgraft.core.problem import DTYPE_WORDS, WORD_OF_DTYPE, Argument, Problem

DIRECTIONS = ("forward", "backward")
OPERATORS = ("dropout", "rrelu")
KEY_WORDS = 4
WORD = re.compile(r"(x|mask)\[([\d,]*)\]")


@dataclass(frozen=True)
class DropoutProblem(Problem):
    """Dropout (Srivastava et al. 2014), or a rectifier with random slopes (Xu et al. 2015).

    Parameters
    ----------
    direction : str
        ``forward``: ``x key -> y``; ``backward``: ``dy key -> dx`` of dropout, ``x dy key -> dx`` of rrelu.
    operator : str
        ``dropout``: every element is multiplied by `scale` with the probability `keep`, else by 0 (NaN and infinity
        then give NaN). ``rrelu``: ``x > 0 ? x : slope x``, the slope uniform between `low` and `high`.
    shape : tuple of int
        Of every tensor.
    mask : tuple of int
        Of dropout: as `shape`, or with sizes of 1 along the axes whose elements share a random number. Empty: `shape`.
    dtype : str

    Notes
    -----
    ``key``: 4 words of int32: the seed's low and high half, the stream, the number of the draw. Numbers come from
    Philox 4x32-10 (Salmon et al. 2011) with 24 bits each, and depend on nothing but the key and the element's place.
    The scalars are ``keep scale`` or ``low high``.

    Raises
    ------
    ProblemError
        If the shapes do not fit.
    """

    kind: ClassVar[str] = "dropout"

    direction: str
    operator: str
    shape: tuple[int, ...]
    mask: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "mask", tuple(int(size) for size in self.mask) or self.shape)
        expect = self._expect
        self._expect_words(direction=DIRECTIONS, operator=OPERATORS)
        expect(all(size >= 0 for size in self.shape), "shape", self.shape, "sizes of at least 0")
        fits = len(self.mask) == len(self.shape) and all(m in (1, size) for m, size in zip(self.mask, self.shape))
        expect(fits, "mask", self.mask, f"the shape {self.shape} or sizes of 1")
        expect(self.operator == "dropout" or self.mask == self.shape, "mask", self.mask, f"{self.shape} for rrelu")

    def with_direction(self, direction: str) -> DropoutProblem:
        """Give the same problem in another direction."""
        return DropoutProblem(direction, self.operator, self.shape, self.mask, self.dtype)

    def arguments(self) -> tuple[Argument, ...]:
        key = Argument("key", "in", (KEY_WORDS,), "int32")

        def tensor(name: str, role: str = "in") -> Argument:
            return Argument(name, role, self.shape, self.dtype)

        if self.direction == "forward":
            return tensor("x"), key, tensor("y", "out")
        first = (tensor("x"), tensor("dy")) if self.operator == "rrelu" else (tensor("dy"),)
        return (*first, key, tensor("dx", "out"))

    def scalars(self) -> tuple[str, ...]:
        return ("keep", "scale") if self.operator == "dropout" else ("low", "high")

    def __str__(self) -> str:
        words = [self.kind, self.direction]
        if self.operator != "dropout":
            words.append(self.operator)
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        words.append(f"x[{','.join(map(str, self.shape))}]")
        if self.mask != self.shape:
            words.append(f"mask[{','.join(map(str, self.mask))}]")
        return " ".join(words)

    @classmethod
    def from_text(cls, text: str) -> DropoutProblem:
        direction, operator, dtype = "forward", "dropout", "float32"
        shapes: dict[str, tuple[int, ...]] = {}
        for word in text.split():
            found = WORD.fullmatch(word)
            if word in DIRECTIONS:
                direction = word
            elif word in OPERATORS:
                operator = word
            elif word in DTYPE_WORDS:
                dtype = DTYPE_WORDS[word]
            elif found and found[1] not in shapes:
                shapes[found[1]] = tuple(int(size) for size in found[2].split(",") if size)
            else:
                raise ProblemError(
                    f"[dropout] got word {word!r}, expected a direction, rrelu, x[8,3] or mask[8,1], once"
                )
        if "x" not in shapes:
            raise ProblemError(f"[dropout] got {text!r}, expected a word x[...] in it")
        return cls(direction, operator, shapes["x"], shapes.get("mask", ()), dtype)
