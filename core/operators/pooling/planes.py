"""Pooling on CPU devices: runs of rows per work-item, in vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.elements import bind, ends
from clgraft.core.operators.pooling.problem import NORMS, OPERATORS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, Local
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "planes"

LARGEST_TAPS = 16  # the taps of a row are unrolled
LARGEST_STRIDE = 8  # and so are the phases of its stride
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # fewer are not worth a work-item's start
ITEMS = (1, 2, 4, 8, 16, 32)  # per core, that are searched


def candidates(problem: PoolProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then ``lanes`` of a vector and ``items`` per core."""
    yield {}
    widest = _lanes(problem, planner)
    for lanes in (widest, widest // 2):
        for items in ITEMS if lanes >= 2 else ():
            yield {"lanes": lanes, "items": items}


def _lanes(problem: PoolProblem, planner: Planner) -> int:
    """Return the device's lanes, or as many as a short row has elements for."""
    lanes = max(2, planner.device.vector_width // (2 if problem.dtype == "float64" else 1))
    return min(lanes, 1 << (problem.in_size[-1].bit_length() - 1))


def plan(problem: PoolProblem, planner: Planner, settings: Mapping[str, int | str] | None = None) -> Launches:
    """Plan one launch over runs of rows: of y forward, of x backward."""
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if chosen and (set(chosen) != {"lanes", "items"} or chosen["lanes"] not in (2, 4, 8, 16) or chosen["items"] < 1):
        raise Declined(f"got settings {chosen}, expected lanes 2, 4, 8 or 16 and items from 1")
    device, forward = planner.device, problem.direction == "forward"
    _check(problem, device.is_cpu)
    itemsize = 8 if problem.dtype == "float64" else 4
    depth, ih, iw = in_3d(problem.in_size, 1)
    od, oh, ow = in_3d(problem.out_size, 1)
    kd, kh, kw = in_3d(problem.kernel, 1)
    sd, sh, sw = in_3d(problem.stride, 1)
    pd, ph, pw = in_3d(problem.pad_begin, 0)
    ed, eh, ew = in_3d(ends(problem), 1)
    lanes = chosen.get("lanes") or _lanes(problem, planner)
    vectors = round_up(ow, lanes)
    # what the last vector of windows reads, and all of the row
    pitch = max(vectors * sw + kw, iw + pw) + 2 * lanes
    planes = problem.batch * problem.channels
    macros = {
        "OPERATOR": OPERATORS.index(problem.operator),
        "BACKWARD": int(not forward),
        "KW": kw,
        "SW": sw,
        "VL": lanes,
    }
    sizes = [ih, iw, oh, ow, kh, sh, ph, pw, eh, ew, problem.count_padding, pitch]
    if forward:
        rows = planes * od * oh
        sizes += [depth, od, kd, sd, pd, ed]
        scratch = [pitch, vectors, vectors]
    else:
        rows = planes * ih
        places = round_up(((iw + pw - 1) // sw + 1), lanes)  # windows that a row of x may meet
        kept_rows = (kh - 1) // sh + 1 if problem.operator == "max" else 1
        kept_pitch = (kw - 1) // sw + max(vectors, places) + lanes
        sizes += [kept_rows, kept_pitch]
        scratch = [pitch, 2 * kept_rows * kept_pitch, vectors, places * sw + lanes]
    if sum(scratch) * itemsize > device.local_memory // 2:
        raise Declined(f"needs {sum(scratch) * itemsize} bytes of local memory")
    kernel = planner.kernel("pooling/planes.cl", f"pool_planes_{problem.direction}", macros, problem.dtype)
    if chosen:
        item_rows = max(1, rows // (device.compute_units * chosen["items"]))
    else:
        item_rows = max(1, rows // (device.compute_units * ITEMS_PER_UNIT), min(rows, ITEM_ELEMENTS // iw))
    output = problem.arguments()[-1].name
    arguments: list[Any] = [*bind(problem), Constant(np.int64(rows)), Constant(np.int32(item_rows))]
    arguments += [Constant(np.int32(size)) for size in sizes]
    arguments += [Local(count * itemsize) for count in scratch]
    return Launches((Launch(kernel, (ceil_div(rows, item_rows),), (1,), tuple(arguments), (output,)),))


def _check(problem: PoolProblem, is_cpu: bool) -> None:
    if not is_cpu:
        raise Declined("is for CPU devices")
    if problem.in_size[-1] < 2:
        raise Declined("needs rows of at least 2")
    if problem.kernel[-1] > LARGEST_TAPS:
        raise Declined(f"unrolls at most {LARGEST_TAPS} taps of a row")
    if problem.stride[-1] > LARGEST_STRIDE:
        raise Declined(f"serves strides up to {LARGEST_STRIDE} along a row")
    if problem.direction == "backward" and problem.ndim == 3:
        raise Declined("has no gradients in 3-D")
    if problem.direction == "backward" and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
