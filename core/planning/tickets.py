"""Items of a launch that its work-items share, see ``kernels/common/tickets.cl``."""

from __future__ import annotations

from clgraft.core.problem import ceil_div

LAST_ITEM = 0.3  # share of an item's time that many cores wait for the last ones


def ticket_count(items: int, workers: int) -> int:
    """Return the number of tickets that stand for all items, for so many work-items."""
    tickets = 0
    while (size := items // (2 * workers)) > 1:
        tickets += workers
        items -= workers * size
    return tickets + items


def turns(items: int, workers: int) -> float:
    """Estimate after how many items' time all are done, where cores differ a little in speed."""
    return max(ceil_div(items, workers), items / workers + LAST_ITEM * (1 - 1 / workers))
