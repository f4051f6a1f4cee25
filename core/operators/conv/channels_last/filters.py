"""Gradient of the weights in channels last on CPU devices: a product of matrices that reads both tensors in place."""

from __future__ import annotations

from math import prod

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.channels_last.pixels import FEWEST_CHANNELS, choose_tile
from clgraft.core.operators.conv.channels_last.windows import (
    expect_wide_groups,
    padded_source,
    reserved_for_winograd,
    windows_of,
)
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "cpu_filters"
FILE = "conv/channels_last/filters.cl"
CHUNK_BYTES = 512 * 1024  # pixels of both tensors that a core's own cache holds
CHUNKS = (64, 1024)  # pixels of a chunk at least and at most


def reserved(problem: ConvProblem) -> str:
    """Return why it is not the default for a problem; empty if it is."""
    return reserved_for_winograd(problem)


def plan(problem: ConvProblem, planner: Planner) -> Launches:
    """Plan the copy of the input where it is padded, the products, and the sum of their parts."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction != "backward_filter":
        raise Declined(f"has no {problem.direction}")
    windows = windows_of(problem)
    if min(windows.run, windows.outputs) < FEWEST_CHANNELS:
        raise Declined(f"is for runs and outputs of at least {FEWEST_CHANNELS} elements of a group")
    pixels = windows.batch * prod(windows.size)
    if not pixels:
        raise Declined("has nothing to multiply")
    lanes, size = vector_lanes(device, problem.dtype), arithmetic_bytes(problem.dtype)
    expect_wide_groups(windows, lanes)
    tile = choose_tile(windows.run, has_32_registers(device), lanes)
    layout = WorkspaceLayout()
    source, pad = padded_source(windows, problem, planner, layout, "x", "dw", lanes, copied=windows.run < lanes)
    runs = prod(windows.taps) * windows.channels // windows.run
    out_tiles, tiles = ceil_div(windows.outputs, tile.rows), ceil_div(windows.run, tile.columns)
    of_part = windows.groups * out_tiles * runs * tiles * tile.rows * tile.columns * size
    x_bytes = windows.batch * prod(windows.padded) * windows.channels * windows.groups * size
    parts, blocks = _split(ITEMS_PER_UNIT * device.compute_units, windows.groups, out_tiles, pixels, of_part, x_bytes)
    item_tiles = ceil_div(out_tiles, blocks)
    of_pixel = (windows.channels + item_tiles * tile.rows) * size
    chunk = min(max(CHUNK_BYTES // of_pixel, CHUNKS[0]), CHUNKS[1])
    part_pixels = ceil_div(pixels, parts)
    parts = ceil_div(pixels, part_pixels)
    partial = layout.take(parts * of_part, size)
    defines = {**tile.defines(), **GRID.defines()}
    products = Launch(
        planner.kernel(FILE, "multiply_filters", defines, problem.dtype, MAD_ENABLE),
        (parts, ceil_div(out_tiles, item_tiles), windows.groups),
        (1, 1, 1),
        (
            *(source, Buffer("dy"), partial, *ints(windows.channels, windows.outputs)),
            *(Constant(np.int64(part_pixels)), *ints(item_tiles, chunk, windows.run), windows.grid(), Local(chunk * 8)),
        ),
        ("dw",),
    )
    total = Launch(
        planner.kernel(FILE, "add_filters", defines, problem.dtype, MAD_ENABLE),
        (windows.outputs, windows.groups),
        (1, 1),
        (partial, Buffer("dw"), Accumulate("dw"), *ints(windows.outputs, runs, windows.run, parts)),
        ("dw",),
    )
    return Launches((*pad, products, total), layout.nbytes)


def _split(items: int, groups: int, out_tiles: int, pixels: int, of_part: int, x_bytes: int) -> tuple[int, int]:
    """Return parts of the pixels and blocks of outputs for about so many work-items, whose memory traffic is least.

    Each part writes sums of its own, which are read again; each block reads the input again.
    """
    wanted, costs = ceil_div(items, groups), {}
    blocks = 1
    while blocks <= min(wanted, out_tiles):
        parts = min(ceil_div(wanted, blocks), pixels)
        costs[parts, blocks] = 2 * parts * of_part + blocks * x_bytes
        blocks *= 2
    return min(costs, key=lambda split: costs[split])
