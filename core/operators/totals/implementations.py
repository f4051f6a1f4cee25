"""Registers the implementation."""

from clgraft.core.operators.totals import tiles
from clgraft.core.operators.totals.problem import TotalsProblem
from clgraft.core.planning.implementation import register

register(TotalsProblem, (tiles,))
