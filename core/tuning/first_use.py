"""``CLGRAFT_TUNE=full``: a search where a problem is first met, kept for the next process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clgraft.core.log import log
from clgraft.core.planning.choice import HEURISTIC
from clgraft.core.tuning.database import Database
from clgraft.core.tuning.identity import device_key
from clgraft.core.tuning.recall import remember
from clgraft.core.tuning.search import Effort, Search, choices

if TYPE_CHECKING:
    from clgraft.core.problem import Problem
    from clgraft.core.session.context import Context

SECONDS = 20.0  # the time for one problem's candidates
FINAL_SECONDS = 1.0


def search_at_first_use(problem: Problem, context: Context) -> None:
    """Search the best choice for a problem and keep it in the user's database.

    A line of the logger ``clgraft`` explains the delay. After `SECONDS` no further candidate is tried.

    Parameters
    ----------
    problem : Problem
    context : Context
    """
    text, device = str(problem), context.device
    remember(text, HEURISTIC, device)  # also for what a search plans on its way
    if len(choices(problem, context)) <= 2:
        return  # the heuristic, and the one implementation that it would choose
    database, start, tried = Database(device_key(device)), time.perf_counter(), 0
    search = Search(problem, context, database.candidates(text), Effort(SECONDS, final_seconds=FINAL_SECONDS))
    for candidate in search.run():
        database.add(text, candidate)
        tried += 1
    found = "no result"
    if search.winner is not None:
        database.finish(search.winner)
        remember(text, search.winner.choice, device)
        times = search.winner.before.median / search.winner.after.median
        found = "the heuristic stays" if search.winner.choice == HEURISTIC else f"{search.winner.choice}, {times:.2f}x"
    # a warning, so that it is seen without any configuration: it explains why the first use took so long
    log.warning("[tuning] %s: %s (%d tried in %.1f s)", text, found, tried, time.perf_counter() - start)
