"""Groups of few channels as groups of more, for products of matrices on units whose tiles they would not fill.

The weights of several groups are blocks on the diagonal of a larger group's: their product has zeros to multiply, and
fewer tiles that are nearly empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from clgraft.core.operators.channels_last.transposes import with_parts
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints
from clgraft.core.planning.workspace import WorkspaceLayout

if TYPE_CHECKING:
    from clgraft.core.operators.conv.problem import ConvProblem
    from clgraft.core.planning.implementation import Planner

FILE = "conv/gemm_gpu/merge_groups.cl"
MOST_CHANNELS = 256  # of merged groups, of inputs or outputs: beyond, zeros cost more than tiles that are not full
FEWEST_CHANNELS = 2  # of a group: with one input or output there are kernels that multiply no zeros


def merges(problem: ConvProblem, vector: int, fewest: int) -> Iterator[int]:
    """Return how many groups can be one: 1, and divisors of the number of groups.

    Parameters
    ----------
    vector : int
        Channels of a merged group are a multiple of this.
    fewest : int
        And at least so many.
    """
    inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    if problem.groups > 1 and min(inputs, outputs) < FEWEST_CHANNELS:
        return
    for count in range(1, problem.groups + 1):
        if problem.groups == 1:
            yield 1
        elif problem.groups % count == 0 and (count == 1 or count * max(inputs, outputs) <= MOST_CHANNELS):
            wide = inputs * count, outputs * count
            if not any(channels % vector for channels in wide) and min(wide) >= fewest:
                yield count


def merged(problem: ConvProblem, count: int) -> ConvProblem:
    """Return the problem with `count` groups in each."""
    return replace(problem, groups=problem.groups // count)


def with_merged_weights(problem: ConvProblem, count: int, planner: Planner, inner: Launches) -> Launches:
    """Return the launches of a problem in channels last, made of those of its merged groups."""
    *_, result = problem.arguments()
    name = "dw" if problem.direction == "backward_filter" else "w"
    inputs, outputs = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    taps = prod(problem.kernel)
    elements = problem.out_channels * taps * inputs
    layout = WorkspaceLayout(inner.workspace_bytes)
    wide = layout.take(elements * count * 2, 2)
    launches = tuple(with_parts(launch, {name: wide}) for launch in inner.launches)
    numbers = ints(taps, inputs, outputs, count)
    if name == "w":
        kernel = planner.kernel(FILE, "conv_merge_groups", {}, problem.dtype)
        arguments = (Buffer("w"), wide, *numbers)
        first = Launch(kernel, (elements * count,), None, arguments, (result.name,), (elements * count * 2,))
        return Launches((first, *launches), layout.nbytes)
    kernel = planner.kernel(FILE, "conv_split_groups", {}, problem.dtype)
    last = Launch(kernel, (elements,), None, (wide, Buffer("dw"), Accumulate("dw"), *numbers), ("dw",))
    return Launches((*launches, last), layout.nbytes)
