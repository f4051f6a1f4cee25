"""Registers the implementations, in order of preference."""

from clgraft.core.operators.fused import in_kernel, in_turn
from clgraft.core.operators.fused.problem import FusedProblem
from clgraft.core.planning.implementation import register

register(FusedProblem, (in_kernel, in_turn))
