"""Pooling on CPU devices of windows that stand side by side, two columns wide: an element is in one of them at most."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pointwise.generate import rows_past_caches
from clgraft.core.operators.pooling.arguments import operator_macros
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.planes import ITEM_ELEMENTS, ITEMS_PER_UNIT
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, ints
from clgraft.core.problem import ceil_div, in_3d

NAME = "side_by_side"
FILE = "pooling/side_by_side.cl"
LEAST_WINDOWS = 4  # of a row
MOST_ROWS = 4  # of a window, which are unrolled


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over runs of rows of windows."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("is for CPU devices")
    if problem.ndim > 2 or any(problem.pad_begin) or any(problem.pad_end):
        raise Declined("serves one or two axes without padding")
    if problem.kernel != problem.stride or problem.kernel[-1] != 2 or max(problem.kernel) > MOST_ROWS:
        raise Declined(f"serves windows of two columns and up to {MOST_ROWS} rows, side by side")
    if any(o * k > i for i, o, k in zip(problem.in_size, problem.out_size, problem.kernel)):
        raise Declined("serves windows that lie in the input")
    backward = problem.direction.startswith("backward")
    if backward and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
    (_, ih, iw), (_, oh, ow), (_, kh, _) = (in_3d(v, 1) for v in (problem.in_size, problem.out_size, problem.kernel))
    if ow < LEAST_WINDOWS:
        raise Declined(f"serves rows of at least {LEAST_WINDOWS} windows")
    widest = max(2, device.vector_width // (2 if problem.dtype == "float64" else 1))
    lanes = min(widest, 1 << (ow.bit_length() - 1))
    macros: dict[str, Any] = {**operator_macros(problem), "VL": lanes, "KH": kh, "BACKWARD": int(backward)}
    macros.update({"ARGMAX": 1} if problem.direction.endswith("_argmax") else {})
    if backward:
        macros |= rows_past_caches(planner, problem.arguments()[-1].nbytes, iw, lanes)
    name = f"pool_{NAME}_{'backward' if backward else 'forward'}"
    kernel = planner.kernel(FILE, name, macros, problem.dtype)
    rows = problem.batch * problem.channels * oh
    least = min(rows, ITEM_ELEMENTS // (iw * kh))
    item_rows = max(1, rows // (device.compute_units * ITEMS_PER_UNIT), least)
    arguments = (*bind(problem), Constant(np.int64(rows)), *ints(item_rows, ih, iw, oh, ow))
    return Launches((Launch(kernel, (ceil_div(rows, item_rows),), (1,), arguments, outputs(problem)),))
