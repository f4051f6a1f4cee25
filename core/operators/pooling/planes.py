"""Pooling on CPU devices: runs of rows per work-item, in vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pointwise.generate import outgrows_caches
from clgraft.core.operators.pooling.arguments import ends, operator_macros
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, Local, ints
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "planes"
FILE, GRADIENT_FILE = "pooling/planes.cl", "pooling/planes_max_gradient.cl"

LARGEST_TAPS = 16  # the taps of a row are unrolled
LARGEST_STRIDE = 8  # and so are the phases of its stride
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # fewer are not worth a work-item's start
BANDS = (4, 1)  # windows of a column that are treated at once; the first that local memory holds
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
    device = planner.device
    _check(problem, device.is_cpu)
    lanes = chosen.get("lanes") or _lanes(problem, planner)
    itemsize = 8 if problem.dtype == "float64" else 4
    most = device.local_memory // 2 // itemsize
    if problem.direction.startswith("forward"):
        works = [_forward(problem, lanes, band) for band in BANDS]
    elif problem.operator == "max":
        works = [_max_gradient(problem, lanes, band) for band in BANDS]
    else:
        works = [_sum_gradient(problem, lanes)]
    work = next((work for work in works if sum(work.scratch) <= most), works[-1])
    if sum(work.scratch) > most:
        raise Declined(f"needs {sum(work.scratch) * itemsize} bytes of local memory")
    macros = {**work.macros, "VL": lanes}
    macros.update({"ARGMAX": 1} if problem.direction.endswith("_argmax") else {})
    result = problem.arguments()[-1]
    if work.file == GRADIENT_FILE and problem.in_size[-1] % lanes == 0:
        macros.update({"PAST_CACHES": 1} if outgrows_caches(planner, result.nbytes) else {})
    kernel = planner.kernel(work.file, work.kernel, macros, problem.dtype)
    rows = problem.batch * problem.channels * work.plane_rows
    if chosen:
        item_rows = max(1, rows // (device.compute_units * chosen["items"]))
    else:
        least = min(rows, ITEM_ELEMENTS // problem.in_size[-1])
        item_rows = max(1, rows // (device.compute_units * ITEMS_PER_UNIT), least)
    arguments: list[Any] = [*bind(problem), Constant(np.int64(rows)), *ints(item_rows, *work.sizes)]
    arguments += [Local(count * itemsize) for count in work.scratch]
    return Launches((Launch(kernel, (ceil_div(rows, item_rows),), (1,), tuple(arguments), outputs(problem)),))


@dataclass(frozen=True)
class _Work:
    """A kernel and what it is told: sizes after those of the work, and the elements of its parts of local memory."""

    file: str
    kernel: str
    plane_rows: int
    macros: dict[str, int]
    sizes: tuple[int, ...]
    scratch: tuple[int, ...]


def _row_pitch(problem: PoolProblem, lanes: int) -> int:
    """Return the elements of a padded row: all of it, and what the last vector of windows reads."""
    iw, ow, kw, sw, pw = (v[-1] for v in _of_axes(problem))
    return max(round_up(ow, lanes) * sw + kw, iw + pw) + 2 * lanes


def _of_axes(problem: PoolProblem) -> tuple[tuple[int, ...], ...]:
    """Return sizes of the input and of the output, windows, strides and paddings, of three axes."""
    one, none = (problem.in_size, problem.out_size, problem.kernel, problem.stride), problem.pad_begin
    return (*(in_3d(values, 1) for values in one), in_3d(none, 0))


def _shape(problem: PoolProblem, pitch: int) -> tuple[int, ...]:
    """Return the sizes that the kernels of planes.cl begin with."""
    (_, ih, iw), (_, oh, ow), (_, kh, _), (_, sh, _), (_, ph, pw) = _of_axes(problem)
    _, eh, ew = in_3d(ends(problem), 1)
    return (ih, iw, oh, ow, kh, sh, ph, pw, eh, ew, int(problem.count_padding), pitch)


def _forward(problem: PoolProblem, lanes: int, band: int) -> _Work:
    (depth, _, _), (od, oh, ow), (kd, _, kw), (sd, _, sw), (pd, _, _) = _of_axes(problem)
    pitch, vectors = _row_pitch(problem, lanes), round_up(ow, lanes)
    macros = {**operator_macros(problem), "BACKWARD": 0, "KW": kw, "SW": sw, "BAND": band}
    sizes = (*_shape(problem, pitch), depth, od, kd, sd, pd, in_3d(ends(problem), 1)[0])
    argmax = (band * pitch,) if problem.direction == "forward_argmax" else ()
    return _Work(FILE, "pool_planes_forward", od * oh, macros, sizes, (band * pitch, vectors, *argmax))


def _sum_gradient(problem: PoolProblem, lanes: int) -> _Work:
    (_, ih, iw), (_, _, ow), (_, _, kw), (_, _, sw), (_, _, pw) = _of_axes(problem)
    vectors = round_up(ow, lanes)
    places = round_up((iw + pw - 1) // sw + 1, lanes)  # windows that a row of x may meet
    kept_pitch = (kw - 1) // sw + max(vectors, places) + lanes
    macros = {**operator_macros(problem), "BACKWARD": 1, "KW": kw, "SW": sw}
    sizes = (*_shape(problem, _row_pitch(problem, lanes)), kept_pitch)
    return _Work(FILE, "pool_planes_backward", ih, macros, sizes, (kept_pitch, vectors, places * sw + lanes))


def _max_gradient(problem: PoolProblem, lanes: int, band: int) -> _Work:
    (_, ih, iw), (_, oh, ow), (_, kh, kw), (_, sh, sw), (_, ph, pw) = _of_axes(problem)
    back, shift = divmod(-pw, sw)
    slots = band + ceil_div(kh - 1, sh)  # rows of windows that a band meets
    x_rows = (slots - 1) * sh + kh
    cells, windows = round_up(ceil_div(iw, sw), lanes), round_up(ow, lanes)
    # vectors are read beyond the last ones: for taps, or as their neighbours
    beyond = max(lanes, (kw - 1 + shift) // sw)
    phase_pitch = max(cells - back, windows + beyond)
    kept_pitch = (kw + sw - 2) // sw + max(cells - back + beyond, windows)
    macros = {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "SHIFT": shift, "BAND": band, "SLOTS": slots, "X_ROWS": x_rows}
    sizes = (ih, iw, oh, ow, ph, back, phase_pitch, kept_pitch)
    kept = (slots + 1) * kept_pitch
    scratch: tuple[int, ...] = (kept, kept)
    if problem.direction == "backward":
        scratch = ((x_rows + 1) * sw * phase_pitch, *scratch)
    return _Work(GRADIENT_FILE, "pool_planes_max_gradient", ih, macros, sizes, scratch)


def _check(problem: PoolProblem, is_cpu: bool) -> None:
    if not is_cpu:
        raise Declined("is for CPU devices")
    if problem.in_size[-1] < 2:
        raise Declined("needs rows of at least 2")
    if problem.kernel[-1] > LARGEST_TAPS:
        raise Declined(f"unrolls at most {LARGEST_TAPS} taps of a row")
    if problem.stride[-1] > LARGEST_STRIDE:
        raise Declined(f"serves strides up to {LARGEST_STRIDE} along a row")
    if problem.direction.startswith("backward") and problem.ndim == 3:
        raise Declined("has no gradients in 3-D")
    if problem.direction == "backward" and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
