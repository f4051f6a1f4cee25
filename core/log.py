"""Messages of the library: the logger ``clgraft``, which applications configure as they like.

Without any configuration Python prints warnings to stderr and nothing else.
"""

from __future__ import annotations

import logging

log = logging.getLogger("clgraft")
_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, each text once in a process."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
