"""Dense layers of 16 bits on GPUs' matrix units: a batch of rows is a convolution of one pixel in channels last."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.halves import IMPLEMENTATIONS, VECTOR
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.dense import outer_gpu
from clgraft.core.operators.dense.matrices import product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.operators.pointwise.add_vector import add_vector
from clgraft.core.planning.delegation import delegate
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launches
from clgraft.core.problem.layout import LAST

NAME = "channels_last_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
# form of the product -> the convolution's direction, and its arguments that are a, b and c
ROLES = {
    "nt": ("forward", "x", "w", "y"),
    "nn": ("backward_data", "dy", "w", "dx"),
    "tn": ("backward_filter", "dy", "x", "dw"),
}


def fuses(problem: DenseProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward with weights as frameworks have them."""
    return problem.direction == "forward" and not problem.transposed


def plan(problem: DenseProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one direction."""
    if problem.dtype not in planner.device.channels_last:
        raise Declined("is for 16 bits on matrix units")
    if problem.direction == "backward_bias" or not problem.batch:
        raise Declined("has no product")
    if problem.direction == "backward_weight" and problem.batch <= outer_gpu.FASTEST_BATCH:
        raise Declined(f"is for weight gradients of batches above {outer_gpu.FASTEST_BATCH}")
    product = product_of(problem)
    direction, a, b, c = ROLES[product.form]
    if product.form == "nn" and (product.s % VECTOR or product.t % VECTOR):
        raise Declined(f"is for multiples of {VECTOR} inputs and outputs")
    fused_bias = problem.bias and direction == "forward"
    convolution = ConvProblem(
        *(direction, product.r, product.t, product.s, (1,), (1,)), bias=fused_bias, dtype=problem.dtype, layout=LAST
    )
    expect_units(convolution, planner)
    names = {a: product.a, b: product.b, c: product.c}
    launches = delegate(planner, convolution, names, epilogue)
    if problem.bias and not fused_bias:
        launches = add_vector(planner, launches, "b", "y", (problem.batch, problem.outputs), 1, problem.dtype)
    return launches


def expect_units(convolution: ConvProblem, planner: Planner) -> None:
    """Decline where no kind of matrix units serves a convolution: what serves it may be the dense layer's kernels."""
    reasons = []
    for form in IMPLEMENTATIONS:
        try:
            form.check(convolution, planner)
            return
        except Declined as reason:
            reasons.append(f"{form.NAME}: {reason}")
    raise Declined("; ".join(reasons))
