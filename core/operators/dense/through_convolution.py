"""Dense layers by the convolution's kernels, for every device: products of matrices are 1x1 convolutions of one image.

The weights (or their gradient) take the place of an image whose channels are the matrix's rows and whose pixels are
its columns; the batch takes the place of the other channels.
"""

from __future__ import annotations

from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.dense.matrices import product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.operators.pointwise.add_vector import add_vector
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches

NAME = "through_convolution"
# form of the product -> the convolution's direction, and its arguments that are a, b and c
ROLES = {
    "nn": ("forward", "w", "x", "y"),
    "tn": ("backward_data", "w", "dy", "dx"),
    "nt": ("backward_filter", "dy", "x", "dw"),
}


def plan(problem: DenseProblem, planner: Planner) -> Launches:
    """Plan one direction; a bias is added in a pass of its own."""
    if problem.direction == "backward_bias":
        convolution = ConvProblem("backward_bias", problem.batch, 1, problem.outputs, (1,), (1,), dtype=problem.dtype)
        return delegate(planner, convolution, {})
    product = product_of(problem)
    if not problem.batch:  # what is left of backward_weight: a sum over no images
        convolution = ConvProblem("backward_filter", 0, product.t, product.s, (1,), (1,), dtype=problem.dtype)
        return delegate(planner, convolution, {"x": product.b, "dy": product.a})
    direction, a, b, c = ROLES[product.form]
    convolution = ConvProblem(direction, 1, product.s, product.r, (product.t,), (1,), dtype=problem.dtype)
    launches = delegate(planner, convolution, {a: product.a, b: product.b, c: product.c})
    if problem.bias:
        launches = add_vector(planner, launches, "b", "y", (problem.batch, problem.outputs), 1, problem.dtype)
    return launches
