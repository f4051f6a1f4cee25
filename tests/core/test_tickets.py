"""Items that work-items share by tickets: each is taken once, and the counter is 0 again, however many there are."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from clgraft import core
from clgraft.core.planning.launches import Buffer, Launch, Launches, Tickets, ints
from clgraft.core.planning.tickets import turns
from clgraft.core.problem import Argument
from clgraft.core.runtime.programs import PlannedKernel
from clgraft.core.runtime.sources import file_source

SIZES = (0, 1, 2, 3, 5, 7, 31, 32, 33, 97, 1000, 4099)
# taken[item] is how often an item was taken, and who[item] by whom
COUNT = """
kernel void count(global int *taken, const ulong taken_at, global int *who, const ulong who_at, const int items,
                  volatile global int *tickets) {
    const int workers = get_global_size(0);
    FOR_ITEMS(share) {
        if (share.item > share.last) continue;
        atomic_inc(taken + taken_at + share.item);
        who[who_at + share.item] = get_global_id(0);
    }
}
"""


class Counted:
    """A problem that is its arguments."""

    details = ""
    dtype = "int32"
    kind = "count"
    operations = nbytes = 0

    def __init__(self, items: int) -> None:
        self.items = items

    def __str__(self) -> str:
        return f"count {self.items}"

    def arguments(self) -> tuple[Argument, ...]:
        return (
            Argument("taken", "inout", (max(self.items, 1),), "int32"),
            Argument("who", "inout", (max(self.items, 1),), "int32"),
        )

    def scalars(self) -> tuple[str, ...]:
        return ()


def counted(context: core.Context, items: int, workers: int):
    """Return a plan in which so many work-items share so many items."""
    source = file_source("common/tickets.cl") + COUNT
    kernel = PlannedKernel(context.programs, source, ("-cl-std=CL1.2",), "count")
    arguments = (Buffer("taken"), Buffer("who"), *ints(items), Tickets())
    launches = Launches((Launch(kernel, (workers,), (1,), arguments, ("taken", "who")),))
    return context.plan_launches(Counted(items), launches, "count")


@pytest.mark.parametrize("workers", [1, 2, 3, 16, 64])
def test_every_item_is_taken_once(context, workers):
    for items in SIZES:
        plan = counted(context, items, workers)
        for _ in range(3):  # the counter is 0 after each
            taken, who = (np.zeros(max(items, 1), np.int32) for _ in range(2))
            plan.run(taken=taken, who=who)
            assert np.array_equal(taken[:items], np.ones(items, np.int32)), (items, workers)


def test_neighbours_are_taken_together_at_first(context):
    taken, who = (np.zeros(4096, np.int32) for _ in range(2))
    counted(context, 4096, 4).run(taken=taken, who=who)
    changes = np.flatnonzero(np.diff(who))
    assert np.all(np.diff(who[:512]) == 0) and len(changes) < 100  # half of a fourth of them, and then half of the rest


def test_threads_that_run_plans_at_the_same_time_share_a_counter(context):
    results = []

    def run(items: int) -> None:
        plan = counted(context, items, 8)
        for _ in range(20):
            taken, who = (np.zeros(items, np.int32) for _ in range(2))
            plan.run(taken=taken, who=who)
            results.append(bool((taken == 1).all()))

    threads = [threading.Thread(target=run, args=(items,)) for items in (100, 333, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


def test_short_items_count_less() -> None:
    """Two cores: of 7 items the last is short; of two rows of 3 items the last ones are."""
    assert turns(7, 2) == 4
    assert turns(7, 2, 7, 0.25) == pytest.approx(3.275)  # 6.25 items, and the wait for the last ones
    assert turns(3, 2, 3, 0.25) == pytest.approx(1.275)
    assert turns(6, 2, 3, 0.75) == pytest.approx(2.9)
    assert turns(9, 2, 3, 0.5) == 4  # 3.75 items each, but one core is left with a whole one
    assert turns(700, 2, 7, 0.25) == pytest.approx(312.65)
