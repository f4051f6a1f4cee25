"""Softmax on CPU devices: vectors along the channels of a row, or along the pixels of all channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.softmax.problem import SoftmaxProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.problem import ceil_div, round_up

NAME = "vectors"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 4096  # fewer are not worth a work-item's start
TILE_VECTORS = 4  # side by side in a tile: a whole run of cache lines of every channel
TILE_BYTES = 1 << 17  # what a tile may hold, to stay in the second level's cache


def plan(problem: SoftmaxProblem, planner: Planner) -> Launches:
    """Plan one launch over rows or over tiles of columns."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("is for CPU devices")
    images, channels, pixels = problem.images, problem.channels, problem.pixels
    itemsize = 8 if problem.dtype == "float64" else 4
    by_rows = pixels == 1
    most = max(2, device.vector_width * 4 // itemsize)
    # as many lanes as are of use
    lanes = min(most, max(2, 1 << ((channels if by_rows else pixels) - 1).bit_length()))
    wide = TILE_VECTORS * lanes
    vectors = TILE_VECTORS if pixels >= wide and channels * wide * itemsize <= TILE_BYTES else 1
    macros = {"LOG": int(problem.log), "VL": lanes, "TV": vectors, **flush_defines(problem.dtype, device)}
    forward = problem.direction == "forward"
    if by_rows:
        units, unit_elements = images, channels
        held = round_up(channels, lanes) if forward else 0
    else:
        units, unit_elements = images * ceil_div(pixels, vectors * lanes), channels * vectors * lanes
        held = channels * vectors * lanes * (1 if forward else 2)
    item_units = max(
        1, ceil_div(units, device.compute_units * ITEMS_PER_UNIT), min(units, ITEM_ELEMENTS // unit_elements)
    )
    items = ceil_div(units, item_units)
    pitch = round_up(held * itemsize, 64) // itemsize
    shape = "rows" if by_rows else "columns"
    kernel = planner.kernel("softmax/softmax.cl", f"softmax_{shape}_{problem.direction}", macros, problem.dtype)
    names = [argument.name for argument in problem.arguments()]
    sizes = [pitch, images, item_units, channels] + ([] if by_rows else [pixels])
    arguments: list[Any] = [
        *(Buffer(name) for name in names),
        Accumulate(names[-1]),
        Scalar("scale", "float64" if itemsize == 8 else "float32"),
        Workspace(0, itemsize),
        *(Constant(np.int64(size)) for size in sizes),
    ]
    return Launches(
        (Launch(kernel, (items,), (1,), tuple(arguments), (names[-1],)),), max(64, items * pitch * itemsize)
    )
