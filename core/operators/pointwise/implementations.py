"""Registers the implementations, in order of preference."""

from clgraft.core.operators.pointwise import generated
from clgraft.core.operators.pointwise.problem import PointwiseProblem
from clgraft.core.planning.implementation import register

register(PointwiseProblem, (generated,))
