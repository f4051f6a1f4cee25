"""Which tuned problem is like another: same kind, direction, kernel, stride and dtype, and sizes not far apart.

A distance is the sum of the sizes' ratios in powers of two: twice the batch is 1, a square of twice the pixels is 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, TypeVar

from clgraft.core.problem import kinds

FARTHEST = 1.0
_NUMBER = re.compile(r"([a-z]+)(\d+)")

Item = TypeVar("Item")


@lru_cache(maxsize=4096)
def split(text: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return a problem's class, and its sizes by name (see `Problem.sizes`).

    Parameters
    ----------
    text : str
        A problem's text.
    """
    kind, *words = text.split()
    problems = kinds().get(kind)
    if problems is None or not problems.sizes:
        return text, ()
    numbers, rest = {}, [kind]
    for word in words:
        found = _NUMBER.fullmatch(word)
        if found and found[1] in problems.sizes:
            numbers[found[1]] = int(found[2])
        elif found and found[1] == "g":
            rest.append("depthwise" if f"ic{found[2]}" in words else f"g{found[2]}")
        elif not (found and found[1] in problems.minor):
            rest.append(word)
    return " ".join([*rest, *numbers]), tuple(numbers.items())


def distance(first: str, second: str) -> float:
    """Return how far apart two problems are; infinity where their classes differ."""
    if first == second:
        return 0.0
    (class_one, one), (class_two, two) = split(first), split(second)
    if class_one != class_two:
        return math.inf
    return sum(abs(math.log2(max(a, 1) / max(b, 1))) for (_, a), (_, b) in zip(one, two))


class Neighbours(Generic[Item]):
    """Items by their problem's text, to be found by it or by one that is near.

    Parameters
    ----------
    items : iterable of (str, item)
        Of several with one text the first counts.
    """

    def __init__(self, items: Iterable[tuple[str, Item]]) -> None:
        self.exact: dict[str, Item] = {}
        self.classes: dict[str, list[tuple[str, Item]]] = {}
        for text, item in items:
            if text not in self.exact:
                self.exact[text] = item
                self.classes.setdefault(split(text)[0], []).append((text, item))

    def nearest(self, text: str) -> tuple[float, str, Item] | None:
        """Return distance, problem and item of the nearest within `FARTHEST`, if any; the first of equals."""
        found = [(distance(text, other), i, other, item) for i, (other, item) in enumerate(self._of_class(text))]
        best = min(found, key=lambda entry: entry[:2], default=None)
        return None if best is None or best[0] > FARTHEST else (best[0], *best[2:])

    def _of_class(self, text: str) -> list[tuple[str, Item]]:
        return self.classes.get(split(text)[0], [])
