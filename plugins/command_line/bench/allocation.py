"""What a peer allocates in each call: memory that it has freed, as our side's results have theirs before the call."""

from __future__ import annotations

import ctypes
import sys

# of glibc's <malloc.h>
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = -1  # as a threshold


def keep_freed_memory() -> bool:
    """Let the C library keep large blocks that are freed, and return whether it does.

    Otherwise glibc gives them back to the system, and a call that returns a new array waits for the pages of new
    memory, which may take 25 times as long as its work.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # other C libraries than glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
