"""Dense layers by the convolution's kernels, for every device: products of matrices are 1x1 convolutions of one image.

The weights (or their gradient) take the place of an image whose channels are the matrix's rows and whose pixels are
its columns; the batch takes the place of the other channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.conv.problem import ConvProblem
from clgraft.core.delegation import add_vector, delegate
from clgraft.core.dense.matrices import product_of
from clgraft.core.dense.problem import DenseProblem
from clgraft.core.plan import Steps

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "through_convolution"
# form of the product -> the convolution's direction, and its arguments that are a, b and c
ROLES = {
    "nn": ("forward", "w", "x", "y"),
    "tn": ("backward_data", "w", "dy", "dx"),
    "nt": ("backward_filter", "dy", "x", "dw"),
}


def plan(problem: DenseProblem, context: Context) -> Steps:
    """Plan one direction; a bias is added in a pass of its own."""
    if problem.direction == "backward_bias":
        convolution = ConvProblem("backward_bias", problem.batch, 1, problem.outputs, (1,), (1,), dtype=problem.dtype)
        return delegate(context, convolution, {})
    product = product_of(problem)
    if not problem.batch:  # what is left of backward_weight: a sum over no images
        convolution = ConvProblem("backward_filter", 0, product.t, product.s, (1,), (1,), dtype=problem.dtype)
        return delegate(context, convolution, {"x": product.b, "dy": product.a})
    direction, a, b, c = ROLES[product.form]
    convolution = ConvProblem(direction, 1, product.s, product.r, (product.t,), (1,), dtype=problem.dtype)
    steps = delegate(context, convolution, {a: product.a, b: product.b, c: product.c})
    if problem.bias:
        steps = add_vector(context, steps, "b", "y", (problem.batch, problem.outputs), 1, problem.dtype)
    return steps
