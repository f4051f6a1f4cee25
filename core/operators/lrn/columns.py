"""Local response normalisation on CPU devices: tiles of pixels through all channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.lrn.elements import bind_scalars, power
from clgraft.core.operators.lrn.problem import LRNProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace
from clgraft.core.problem import SMALL, ceil_div, round_up

NAME = "columns"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # fewer are not worth a work-item's start
# vectors side by side in a tile, what fits first: a run of cache lines of every channel; the first one for 16 bits
TILE_VECTORS = (8, 4)
TILE_BYTES = 1 << 18  # what a tile may hold, to stay in the second level's cache
LARGEST_HALF = 16  # windows are unrolled


def plan(problem: LRNProblem, planner: Planner) -> Launches:
    """Plan one launch over tiles of columns."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("is for CPU devices")
    images, channels, pixels, half = problem.images, problem.channels, problem.pixels, problem.size // 2
    if half > LARGEST_HALF:
        raise Declined(f"unrolls windows of at most {2 * LARGEST_HALF + 1} channels")
    itemsize = 8 if problem.dtype == "float64" else 4
    forward = problem.direction == "forward"
    most = max(2, device.vector_width * 4 // itemsize)
    lanes = min(most, max(2, 1 << (pixels - 1).bit_length()))
    rows = (channels + 2 * half) * (1 if forward else 2) + (0 if forward else channels)
    counts = TILE_VECTORS[0 if problem.dtype in SMALL else 1 :]
    most_lanes = min(pixels, TILE_BYTES // (rows * itemsize))
    vectors = next((count for count in counts if count * lanes <= most_lanes), 1)
    wide = vectors * lanes
    tiles = images * ceil_div(pixels, wide)
    item_tiles = max(1, ceil_div(tiles, device.compute_units * ITEMS_PER_UNIT))
    item_tiles = max(item_tiles, min(tiles, ITEM_ELEMENTS // (channels * wide)))
    items = ceil_div(tiles, item_tiles)
    pitch = round_up(rows * wide * itemsize, 64) // itemsize
    macros = {"HALF": half, "POWER": power(problem), "VL": lanes, "TV": vectors}
    kernel = planner.kernel("lrn/lrn.cl", f"lrn_columns_{problem.direction}", macros, problem.dtype)
    names = [argument.name for argument in problem.arguments()]
    arguments: list[Any] = [
        *(Buffer(name) for name in names),
        Accumulate(names[-1]),
        *bind_scalars(problem),
        Workspace(0, itemsize),
        *(Constant(np.int64(size)) for size in (pitch, images, item_tiles, channels, pixels)),
    ]
    return Launches((Launch(kernel, (items,), (1,), tuple(arguments), (names[-1],)),), items * pitch * itemsize)
