"""Answers programs that the tests start: what the contexts of their process have copied."""

from __future__ import annotations

import gc

from clgraft.core.runtime.context import DeviceContext


def answer(question: bytes) -> bytes:
    """Return sums over all contexts as text, such as `launches 3 bytes_to_device 0`."""
    totals: dict[str, int] = {}
    # isinstance would ask weak references whose objects are gone
    for context in [found for found in gc.get_objects() if issubclass(type(found), DeviceContext)]:
        for name, value in context.counters().items():
            totals[name] = totals.get(name, 0) + value
    return " ".join(f"{name} {value}" for name, value in totals.items()).encode()
