"""Changes arrays in place, element by element, as optimizers change parameters; `implementations` lists how."""

from clgraft.core.operators.update.problem import UpdateProblem
from clgraft.core.operators.update.together import UpdatesProblem

__all__ = ["UpdateProblem", "UpdatesProblem"]
