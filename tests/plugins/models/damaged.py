"""Damaged files: what a reader may do with them is to read them, or to raise an error of clgraft's; nothing else."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clgraft.core.errors import ClgraftError

NUMBERS = (0, 1, 2, 5, 127, 128, 255)
WORDS = (b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1" + b"\0" * 7)
SECONDS, ROOM = 5, 2**20  # of one file; bytes beyond a few times the file's


def cut(data: bytes, step: int = 1) -> Iterator[bytes]:
    """Yield the beginnings of a file."""
    for size in range(0, len(data), step):
        yield data[:size]


def mutated(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield files with a few changes each: bytes, words, parts that are gone, doubled or moved."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            place, kind = int(rng.integers(0, max(1, len(made)))), int(rng.integers(0, 6))
            size = int(rng.integers(1, 17))
            if kind == 0:
                made[place : place + 1] = bytes([NUMBERS[int(rng.integers(0, len(NUMBERS)))]])
            elif kind == 1:
                made[place : place + 1] = bytes([int(rng.integers(0, 256))])
            elif kind == 2:
                word = WORDS[int(rng.integers(0, len(WORDS)))]
                made[place : place + len(word)] = word
            elif kind == 3:
                del made[place : place + size]
            elif kind == 4:
                made[place:place] = made[place : place + size]
            else:
                other = int(rng.integers(0, max(1, len(made))))
                made[place : place + size] = made[other : other + size]
        yield bytes(made)


def survives(read: Callable[[bytes], Any], data: bytes) -> bool:
    """Return whether a file is read, after it is checked that it is refused in words otherwise, soon and in room."""
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        read(data)
        good = True
    except ClgraftError as error:
        assert str(error).startswith("["), error
        good = False
    finally:
        seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seconds < SECONDS and peak < 8 * len(data) + ROOM, f"{seconds} s, {peak} bytes for {data!r}"
    return good
