"""What the programs of this folder say on stderr while they measure: rows may come minutes apart."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Callable, TypeVar

Item = TypeVar("Item")


def say(text: str) -> None:
    """Say what is measured next."""
    print(f"measuring {text}", file=sys.stderr, flush=True)


def announced(items: Iterable[Item], label: Callable[[Any], object] = str) -> Iterator[Item]:
    """Yield items, and say which one is measured and how many there are."""
    listed = list(items)
    for number, item in enumerate(listed, 1):
        say(f"{label(item)}, {number} of {len(listed)}")
        yield item


def first(pair: tuple[Any, ...]) -> Any:
    """Return the first of several values, such as the key of a dictionary's item."""
    return pair[0]
