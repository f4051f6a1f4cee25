"""The gradient of the weights for small batches on GPUs: a sum of few outer products, as fast as memory takes it."""

from __future__ import annotations

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.dense.matrices import product_of
from clgraft.core.operators.dense.problem import DenseProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches
from clgraft.core.problem import ceil_div

NAME = "outer_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
MOST_BATCH = {4: 32, 8: 16}  # by bytes of an element: larger ones take registers, and are worth tiles of products
FASTEST_BATCH = 8  # of 16 bits: matrix units take larger ones in less time
GROUP = 128
ROWS = (16, 4)  # rows of a work-group: few where there would be fewer than GROUPS_PER_UNIT work-groups
GROUPS_PER_UNIT = 8
LARGEST = 2**31


def plan(problem: DenseProblem, planner: Planner) -> Launches:
    """Plan one launch."""
    if planner.device.is_cpu:
        raise Declined("made for GPUs")
    if problem.direction != "backward_weight":
        raise Declined(f"has no {problem.direction}")
    most = MOST_BATCH[arithmetic_bytes(problem.dtype)]
    if not 0 < problem.batch <= most:
        raise Declined(f"is for batches of 1 to {most}, got {problem.batch}")
    product = product_of(problem)
    wide = 4 if product.t % 4 == 0 else 1
    tiles = ceil_div(product.t, GROUP * wide)
    wanted = GROUPS_PER_UNIT * planner.device.compute_units
    rows = next((rows for rows in ROWS if tiles * ceil_div(product.s, rows) >= wanted), ROWS[-1])
    groups = tiles * ceil_div(product.s, rows)
    if max(groups * GROUP, product.s, product.t) >= LARGEST:
        raise Declined(f"{groups} work-groups for {product.s} x {product.t} weights are too many")
    macros = {"BATCH": problem.batch, "GROUP": GROUP, "ROWS": rows, "WIDE": wide}
    launch = Launch(
        planner.kernel("dense/outer_gpu.cl", "dense_outer", macros, problem.dtype),
        (groups * GROUP,),
        (GROUP,),
        (
            *(Buffer(product.a), Buffer(product.b), Buffer(product.c), Accumulate(product.c)),
            *(Constant(np.uint32(number)) for number in (product.s, product.t, tiles)),
        ),
        (product.c,),
    )
    return Launches((launch,))
