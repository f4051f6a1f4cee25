"""Places the values of a graph in one arena, so that values that do not live at the same time share memory.

Largest first, each at the lowest place that is free while it lives: "greedy by size for offset calculation" of
Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clgraft.core.problem import round_up

ALIGNMENT = 256  # bytes; a multiple of what any device asks of a buffer's offset


@dataclass(frozen=True)
class Life:
    """Something that needs memory from one node of a graph to another one, both included."""

    name: str
    nbytes: int
    first: int
    last: int


def place(lives: Sequence[Life]) -> tuple[dict[str, int], int]:
    """Return the offset of each life in bytes, and the size of the arena.

    Lives that overlap in time do not overlap in memory.
    """
    placed: list[tuple[int, int, Life]] = []
    offsets: dict[str, int] = {}
    size = 0
    for life in sorted(lives, key=lambda life: (-life.nbytes, life.first, life.name)):
        needed = round_up(max(life.nbytes, 1), ALIGNMENT)
        taken = sorted(
            (begin, end) for begin, end, other in placed if other.first <= life.last and life.first <= other.last
        )
        offset = 0
        for begin, end in taken:
            if begin - offset >= needed:
                break
            offset = max(offset, end)
        placed.append((offset, offset + needed, life))
        offsets[life.name] = offset
        size = max(size, offset + needed)
    return offsets, size
