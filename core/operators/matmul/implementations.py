"""Registers the implementations, in order of preference."""

from clgraft.core.operators.matmul import through_dense, through_groups
from clgraft.core.operators.matmul.problem import MatMulProblem
from clgraft.core.planning.implementation import register

register(MatMulProblem, (through_dense, through_groups))
