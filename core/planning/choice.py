"""A choice for a problem: an implementation's name and its settings, as one line of text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from clgraft.core.errors import ProblemError

Value = Union[int, str]
_WORD = re.compile(r"([A-Za-z_]\w*)=([\w.+-]+)")


@dataclass(frozen=True)
class Choice:
    """An implementation and its settings; without settings the implementation chooses them itself.

    Its text is ``winograd`` or ``cpu_gemm tiles=3 row_tiles=8``.
    """

    algorithm: str
    settings: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, algorithm: str, settings: Mapping[str, Value] | None = None) -> Choice:
        """Make a choice from a mapping of settings; their order does not count."""
        return cls(algorithm, tuple(sorted((settings or {}).items())))

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Read a choice from its text.

        Raises
        ------
        ProblemError
            If a word is no ``name=value``.
        """
        algorithm, *words = text.split() or [""]
        settings: dict[str, Value] = {}
        for word in words:
            found = _WORD.fullmatch(word)
            if not found or found[1] in settings:
                raise ProblemError(f"[tuning] got {word!r} in {text!r}, expected name=value, each name once")
            settings[found[1]] = int(found[2]) if re.fullmatch(r"-?\d+", found[2]) else found[2]
        if not algorithm.isidentifier():
            raise ProblemError(f"[tuning] got {text!r}, expected an implementation's name and name=value words")
        return cls.of(algorithm, settings)

    def __str__(self) -> str:
        return " ".join([self.algorithm, *(f"{name}={value}" for name, value in self.settings)])


HEURISTIC = Choice("heuristic")  # what planning chooses by itself
