"""How many tickets there are for the items of a launch, for ``kernels/common/tickets.cl``."""

from __future__ import annotations


def ticket_count(items: int, workers: int) -> int:
    """Return the number of tickets that stand for all items, for so many work-items."""
    tickets = 0
    while (size := items // (2 * workers)) > 1:
        tickets += workers
        items -= workers * size
    return tickets + items
