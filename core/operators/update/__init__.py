"""Changes arrays in place, element by element, as optimizers change parameters; `implementations` lists how."""

from clgraft.core.operators.update.problem import UpdateProblem

__all__ = ["UpdateProblem"]
