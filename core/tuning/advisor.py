"""What a context asks before it plans a problem: is there a tuned choice, of this problem or of one like it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.tuning.policies import policy
from clgraft.core.tuning.recall import Advice, advice, known, results

if TYPE_CHECKING:
    from clgraft.core.problem import Problem
    from clgraft.core.session.context import Context


def advise(problem: Problem, context: Context) -> Advice | None:
    """Return the advice for a problem on a context's device, as ``CLGRAFT_TUNE`` allows (see `policy`)."""
    allowed = policy()
    if allowed == "off":
        return None
    text = str(problem)
    if allowed == "full" and not known(text, context.device):
        from clgraft.core.tuning.first_use import search_at_first_use  # loads the search, which few processes need

        search_at_first_use(problem, context)
    return advice(text, context.device)


def _state(context: Context) -> str | None:
    """Return a text that changes with the user's results, on which advice depends; shipped rows are sources of ours.

    None: advice may change at any time, because problems without a result are searched.
    """
    allowed = policy()
    return None if allowed == "full" else allowed if allowed == "off" else results(context.device)


advise.state = _state  # type: ignore[attr-defined]
