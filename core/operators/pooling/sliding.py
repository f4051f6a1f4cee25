"""Pooling on CPU devices where windows begin at every element: columns of results that slide down a plane."""

from __future__ import annotations

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import ends, operator_macros
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.problem import PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes, vector_lanes
from clgraft.core.planning.launches import Constant, Launch, Launches, Local, ints
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.problem import ceil_div, in_3d

NAME = "sliding"
FILE = "pooling/sliding.cl"

LARGEST_TAPS = 5  # of an axis: a window's rows stay in registers
FEW_TAPS = 3  # of an axis, with which two columns of vectors slide side by side
LANES = 16  # of a vector: with fewer the registers do not hold a window's rows, scales and masks
PLANE_BYTES = 16 * 1024  # of a source, which each column of results reads again from the L1 cache
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # fewer are not worth a work-item's start


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over planes."""
    device = planner.device
    _check(problem, device.is_cpu)
    forward = problem.direction == "forward"
    sizes = in_3d(problem.in_size, 1)[1:], in_3d(problem.out_size, 1)[1:]
    (ih, iw), (oh, ow) = sizes if forward else sizes[::-1]
    (kh, kw), (ph, pw) = in_3d(problem.kernel, 1)[1:], in_3d(problem.pad_begin, 0)[1:]
    if vector_lanes(device, problem.dtype) < LANES or ow < LANES:
        raise Declined(f"is for vectors of {LANES} lanes and rows that are as long")
    planes, size = problem.batch * problem.channels, arithmetic_bytes(problem.dtype)
    if problem.arguments()[0].nbytes > planes * PLANE_BYTES:
        raise Declined(f"reads planes of at most {PLANE_BYTES} bytes column by column")
    item_planes = max(1, ceil_div(planes, device.compute_units * ITEMS_PER_UNIT), ITEM_ELEMENTS // (oh * ow))
    begins = (-ph, -pw) if forward else (ph - kh + 1, pw - kw + 1)
    _, eh, ew = in_3d(ends(problem), 1)
    macros = {**operator_macros(problem), "BACKWARD": int(not forward), "KH": kh, "KW": kw, "VL": LANES}
    macros["SIDE"] = 2 if max(kh, kw) <= FEW_TAPS and ceil_div(ow, LANES) % 2 == 0 else 1
    macros.update(flush_defines(problem.dtype, device) if problem.operator != "max" else {})
    arguments = (
        *(*bind(problem), Constant(np.int64(planes)), *ints(item_planes, ih, iw, oh, ow, *begins)),
        *(*ints(ph, pw, eh, ew, int(problem.count_padding)), Constant(np.int64(planes * ih * iw))),
        Local((max(iw, ow) + 2 * (kw + LANES)) * size),
    )
    kernel = planner.kernel(FILE, "pool_sliding", macros, problem.dtype)
    return Launches((Launch(kernel, (ceil_div(planes, item_planes),), (1,), arguments, outputs(problem)),))


def _check(problem: PoolProblem, is_cpu: bool) -> None:
    if not is_cpu:
        raise Declined("is for CPU devices")
    if problem.ndim > 2 or any(stride != 1 for stride in problem.stride):
        raise Declined("is for windows of one or two axes that begin at every element")
    if max(problem.kernel) > LARGEST_TAPS:
        raise Declined(f"keeps at most {LARGEST_TAPS} rows of at most {LARGEST_TAPS} columns")
    if problem.operator not in ("average", "sum") and (problem.operator, problem.direction) != ("max", "forward"):
        raise Declined("has averages, sums and, forward, maxima")
