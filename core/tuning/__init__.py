"""Which implementation and which settings serve a problem: the user's own results, shipped rows, their neighbours.

`advice` is what a context asks; `search` is what ``clgraft tune`` and ``CLGRAFT_TUNE=full`` do.
"""

from clgraft.core.tuning.advisor import Advice, advice, forget_database
from clgraft.core.tuning.choice import HEURISTIC, Choice
from clgraft.core.tuning.first_use import search_once
from clgraft.core.tuning.policies import policy

__all__ = ["HEURISTIC", "Advice", "Choice", "advice", "forget_database", "policy", "search_once"]
