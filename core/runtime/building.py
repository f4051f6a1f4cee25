"""Tells a user at a terminal that kernels are being built, where that takes long; a pipe and a file stay quiet.

Building happens once for a device and a version, so nobody expects it, and without a word it looks like a hang.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from clgraft.core.log import log

PATIENCE = 2.0  # seconds of building after which a user wants to know
PAUSE = 5.0  # seconds without building after which the count starts anew

_lock = threading.Lock()
built = [0]  # programs that this process has built


class _Episode:
    """Builds that follow each other closely, and the line that tells of them."""

    def __init__(self) -> None:
        self.done = self.total = self.silent = 0
        self.spent = self.ended = 0.0
        self.text = ""
        self.line: Any = None


_episode = _Episode()


def count() -> None:
    """Count a program that is built."""
    with _lock:
        built[0] += 1


@contextmanager
def silenced() -> Iterator[None]:
    """Show no line in this block: what runs in it draws on the terminal itself."""
    _episode.silent += 1
    try:
        yield
    finally:
        _episode.silent -= 1


@contextmanager
def told(device: str, count: int) -> Iterator[Callable[[str], None]]:
    """Tell of `count` programs that are built in this block, once builds have taken longer than `PATIENCE`.

    Yields
    ------
    callable
        To be called with the kernel's name before each of them is built.
    """
    began = time.perf_counter()
    with _lock:
        if began - _episode.ended > PAUSE:
            _episode.done = _episode.total = 0
            _episode.spent = 0.0
        _episode.total += count
    done = 0

    def step(kernel: str) -> None:
        nonlocal done
        done += 1
        with _lock:
            built[0] += 1
            _episode.done += 1
            _episode.text = f"building kernels for {device}, once: {_episode.done} of {_episode.total}"
            if _episode.line is not None:
                _episode.line.update(_episode.text)
        log.debug("building %s for %s", kernel, device)

    timer = threading.Timer(max(0.0, PATIENCE - _episode.spent), _show)
    timer.daemon = True
    timer.start()
    try:
        yield step
    finally:
        timer.cancel()
        with _lock:
            _episode.total -= count - done
            _episode.ended = time.perf_counter()
            _episode.spent += _episode.ended - began
            line, _episode.line = _episode.line, None
        if line is not None:
            line.stop()
        if done:
            log.info("built %d programs for %s in %.1f s", done, device, time.perf_counter() - began)


def _show() -> None:
    with _lock:
        if _episode.silent or _episode.line is not None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.status import Status

        _episode.line = Status(escape(_episode.text), console=Console(file=sys.stderr))
        _episode.line.start()
