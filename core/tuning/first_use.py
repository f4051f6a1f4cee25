"""``CLGRAFT_TUNE=full``: a search where a problem is first met, kept for the next process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.tuning.advisor import known, remember
from clgraft.core.tuning.choice import HEURISTIC

if TYPE_CHECKING:
    from clgraft.core.context import Context
    from clgraft.core.problem import Problem

SECONDS = 20.0  # of a problem's candidates
FINAL_SECONDS = 1.0


def search_once(problem: Problem, context: Context) -> None:
    """Search the best choice for a problem, unless the user's database has it; what it holds is kept there.

    Parameters
    ----------
    problem : Problem
    context : Context
    """
    text, device = str(problem), context.device
    if known(text, device):
        return
    # a process that only uses what was found need not load all of this
    from clgraft.core.tuning.database import Database
    from clgraft.core.tuning.identity import device_key
    from clgraft.core.tuning.search import Effort, Search, choices

    remember(text, HEURISTIC, device)  # also for what a search plans on its way
    if len(choices(problem, context)) <= 2:
        return  # the heuristic, and the one implementation that it would choose
    database = Database(device_key(device))
    search = Search(problem, context, database.candidates(text), Effort(SECONDS, final_seconds=FINAL_SECONDS))
    for candidate in search.run():
        database.add(text, candidate)
    if search.winner is not None:
        database.finish(search.winner)
        remember(text, search.winner.choice, device)
