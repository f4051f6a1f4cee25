"""Registers the implementations, in order of preference."""

from clgraft.core.operators.detection import greedy, passes, regions
from clgraft.core.operators.detection.align import RoiAlignProblem
from clgraft.core.operators.detection.ordered import OrderedSuppressionProblem
from clgraft.core.operators.detection.suppression import NonMaxSuppressionProblem
from clgraft.core.planning.implementation import register

register(NonMaxSuppressionProblem, (greedy,))
register(OrderedSuppressionProblem, (passes,))
register(RoiAlignProblem, (regions,))
