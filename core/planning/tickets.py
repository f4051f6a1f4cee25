"""Items of a launch that its work-items share, see ``kernels/common/tickets.cl``."""

from __future__ import annotations

from clgraft.core.problem import ceil_div

LAST_ITEM = 0.3  # share of an item's time that many cores wait for the last ones


def turns(items: int, workers: int) -> float:
    """Estimate after how many items' time all are done, where cores differ a little in speed."""
    return max(ceil_div(items, workers), items / workers + LAST_ITEM * (1 - 1 / workers))
