"""What the library logs, for tests."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from clgraft.core import log


@contextmanager
def logged(pattern: str = "") -> Iterator[list[str]]:
    """Collect the warnings of the block; one of them must match the pattern, or none may come without a pattern."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    log._warned.clear()
    logger = logging.getLogger("clgraft")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        log._warned.clear()
    assert any(re.search(pattern, text) for text in texts) if pattern else not texts, texts
