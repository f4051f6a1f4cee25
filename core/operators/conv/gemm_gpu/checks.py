"""What the products' kernels on GPUs cannot count."""

from __future__ import annotations

from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_gpu.constants import OUTSIDE
from clgraft.core.operators.conv.gemm_gpu.product import LARGEST
from clgraft.core.operators.conv.problem import ConvProblem


def check_sizes(problem: ConvProblem) -> None:
    """Decline what the kernels' 32-bit numbers cannot count: one image of one group, or the pixels of a batch."""
    for name, channels, size in (
        ("x", problem.in_channels, problem.in_size),
        ("y", problem.out_channels, problem.out_size),
    ):
        image = channels // problem.groups * prod(size)
        pixels = problem.batch * prod(size)
        if image > LARGEST or pixels > LARGEST - 2**16 or max(size) >= OUTSIDE:
            raise Declined(
                f"{name} has {image} elements in a group of an image, {pixels} pixels; both have to be below 2**31"
            )
    reach = max(d * k + p for d, k, p in zip(problem.dilate, problem.kernel, problem.pad_begin))
    if reach >= OUTSIDE or problem.in_channels // problem.groups * prod(problem.kernel) > LARGEST - 2**16:
        raise Declined(f"the kernel {problem.kernel} has too many taps or reaches too far")
