"""Keys of random numbers: reproducible by `mx.random.seed`, whatever the order in which MXNet's threads run operators.

A key is (seed, stream, draw). The seed is MXNet's, or the operator's own attribute. Every operator at work has a
stream, numbered as they are made (one per executor, cached graph or imperative call, in the program's order), and
counts its draws since the last seeding. So neither threads nor what else draws change an operator's numbers.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

from clgraft.mxnet_ops.engine.operator import Draw

WORD = 2**32


class _Seed:
    """MXNet's seed, and the streams that were given out under it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sow(0)

    def sow(self, value: int) -> None:
        with self.lock:
            self.value = int(value)
            self.generation = object()
            self.streams = itertools.count()

    def stream(self) -> int:
        with self.lock:
            return next(self.streams)

    def now(self) -> tuple[int, object]:
        with self.lock:
            return self.value, self.generation


_seed = _Seed()


class Stream:
    """The random numbers of one operator at work.

    Parameters
    ----------
    draw : Draw
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._number = _seed.stream() if draw.seed is None else 0
        self._generation: object = None
        self._count = 0

    def advance(self, train: bool, key: np.ndarray) -> None:
        """Write the next draw into an operator's key, if a forward draws."""
        if not (train or self._draw.always):
            return
        seed, generation = _seed.now() if self._draw.seed is None else (self._draw.seed, None)
        if generation is not self._generation:
            self._generation, self._count = generation, 0
        words = (seed % WORD, seed // WORD % WORD, self._number % WORD, self._count % WORD)
        key.view(np.uint32)[...] = words
        self._count += 1


def _seeding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(seed_state: int, *args: Any, **kwargs: Any) -> Any:
        found = original(seed_state, *args, **kwargs)
        _seed.sow(int(seed_state))
        return found

    return seed


def install() -> None:
    """Let MXNet's functions that seed seed the clgraft operators too; once per process."""
    for module in (mx.random, mx.npx.random):
        if getattr(module.seed, "__wrapped__", None) is None:
            module.seed = _seeding(module.seed)
