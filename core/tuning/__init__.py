"""Which implementation and which settings serve a problem: the user's own results, shipped rows, their neighbours.

`advise` is the advisor of every context; `search` is what ``clgraft tune`` and ``CLGRAFT_TUNE=full`` do.
"""

from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.tuning.advisor import advise
from clgraft.core.tuning.policies import policy
from clgraft.core.tuning.recall import Advice, advice, forget_database

__all__ = ["HEURISTIC", "Advice", "Choice", "advice", "advise", "forget_database", "policy"]
