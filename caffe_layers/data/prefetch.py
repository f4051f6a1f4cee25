"""Batches of a net, read ahead by a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clgraft.caffe_layers.data.sources import GIVEN, Batch, batches, given_arrays

AHEAD = 3  # batches that are ready


class Feed:
    """The batches of all data layers of a net, which a thread reads ahead.

    Parameters
    ----------
    layers : sequence of LayerParameter
    training : bool
    seed : int
        Of random crops, mirrors and orders.
    feed : mapping of str to array or iterator, optional
        For the tops of Input and MemoryData layers.
    share : (int, int)
        The number of this process, and of all that train together: each takes every so many-th record.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Of the first batch.
    waited : float
        Seconds that `next` has waited for the thread.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        training: bool,
        seed: int,
        feed: Mapping[str, Any] | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        rng = np.random.default_rng(seed)
        sources = [
            given_arrays(layer, feed or {}) if layer.type in GIVEN else batches(layer, training, rng, share)
            for layer in layers
        ]
        self._first: Batch | None = _taken(sources)
        self.shapes = {name: array.shape for name, array in self._first.items()}
        self.waited = 0.0
        self._alone = any(layer.type in GIVEN for layer in layers)  # a program's iterators stay in its thread
        self._sources = sources
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(AHEAD)
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._seen: Batch | None = None  # it is there, and `next` returns it

    def next(self) -> Batch:
        """Return the next batch."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._seen is not None:
            seen, self._seen = self._seen, None
            return seen
        if self._alone:
            return _taken(self._sources)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="clgraft-data", daemon=True)
            self._thread.start()
        began = time.perf_counter()
        found = self._ready.get()
        self.waited += time.perf_counter() - began
        if isinstance(found, BaseException):
            raise found
        return found

    def peek(self) -> Batch | None:
        """Return the batch that `next` is going to return, if the thread has read it; else None."""
        if self._seen is None and self._first is None and not self._alone and self._thread is not None:
            with self._ready.mutex:
                found = self._ready.queue[0] if self._ready.queue else None
            if isinstance(found, dict):
                self._seen = self._ready.get()  # type: ignore[assignment]
        return self._seen

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                found: Batch | BaseException = _taken(self._sources)
            except Exception as error:
                found = error
            while not self._ended.is_set():
                try:
                    self._ready.put(found, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(found, BaseException):
                return


def _taken(sources: Sequence[Iterator[Batch]]) -> Batch:
    return {name: array for source in sources for name, array in next(source).items()}
