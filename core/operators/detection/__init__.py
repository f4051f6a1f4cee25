"""Parts of detection heads: the choice of boxes, and regions of interest as images of one size."""

from clgraft.core.operators.detection.align import RoiAlignProblem
from clgraft.core.operators.detection.ordered import OrderedSuppressionProblem
from clgraft.core.operators.detection.suppression import NonMaxSuppressionProblem

__all__ = ["NonMaxSuppressionProblem", "OrderedSuppressionProblem", "RoiAlignProblem"]
