"""Items of a launch that its work-items share, see ``kernels/common/tickets.cl``."""

from __future__ import annotations

from heapq import heapreplace

from clgraft.core.problem import ceil_div

LAST_ITEM = 0.3  # share of an item's time that many cores wait for the last ones
MOST_SIMULATED = 64  # items up to which it is found out which core takes which


def turns(items: int, workers: int, row: int = 1, share: float = 1.0) -> float:
    """Estimate after how many items' time all are done, where cores differ a little in speed.

    Parameters
    ----------
    items, workers : int
    row, share : int and float
        The last of each `row` items takes only this share of an item's time.
    """
    work = items - items // row * (1 - share)
    least = 0.0
    if share == 1:
        least = ceil_div(items, workers)
    elif items <= MOST_SIMULATED:
        busy = [0.0] * workers
        for item in range(items):
            heapreplace(busy, busy[0] + (share if item % row == row - 1 else 1))
        least = max(busy)
    return max(least, work / workers + LAST_ITEM * (1 - 1 / workers))
