"""Where the calling thread may run, kept over a driver's calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def affinity_kept() -> Iterator[None]:
    """Restore the calling thread's affinity: a driver may pin every thread that enters it, not only its own."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != before:
            os.sched_setaffinity(0, before)
