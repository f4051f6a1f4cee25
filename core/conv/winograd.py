"""Winograd's convolution F(4x4, 3x3) on CPU devices: 3 x 3 kernels with stride 1 in all directions.

A quarter of the multiplications of the direct method, at about four times its rounding error.
Lavin and Gray, Fast algorithms for convolutional neural networks, 2015. ``CLGRAFT_WINOGRAD=off`` forbids it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from clgraft.core.conv.cpu_gemm_grid import Tile, ints
from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Constant, Launch, Local, Steps, Workspace

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "winograd"
OPTIONS = ("-cl-mad-enable",)
ALIGN = 256  # bytes, of parts of the workspace
CHUNK = 64  # channels of a row of V, the kernels' WC
GROUP_ROWS = 4  # tile rows whose pixels are transposed at once, the kernels' ROWS
ELEMENTS = 36
SLICE_BYTES = 768 * 1024
WEIGHT_CHANNELS = 32  # of a work-item that transforms weights


def worthwhile(tiles: int, channels: int, outputs: int, pixels: int) -> bool:
    """Whether the transforms cost less than the multiplications that they save; in cycles of a core, roughly."""
    transforms = tiles * (channels + outputs) * 18 + ELEMENTS * channels * outputs / 4
    return transforms + tiles * channels * outputs * ELEMENTS / 32 < pixels * channels * outputs * 9 / 32


def _register_tile(context: Context, outputs: int) -> Tile:
    lanes = context.device.vector_width
    rows = {4: 6, 3: 8, 2: 12} if lanes >= 16 else {3: 4, 2: 6}
    vectors = min(rows, key=lambda v: (-(-outputs // (v * lanes)) * v, -v))
    return Tile(rows[vectors], vectors, lanes)


def _check(problem: ConvProblem, context: Context) -> None:
    """Decline what the method does not serve, and what it would not speed up."""
    if os.environ.get("CLGRAFT_WINOGRAD", "").lower() in ("off", "0"):
        raise Declined("CLGRAFT_WINOGRAD is off")
    if not context.device.is_cpu or context.device.vector_width < 8:
        raise Declined("made for CPU devices with vectors of 8 or more")
    if problem.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {problem.direction}")
    if problem.kernel != (3, 3) or problem.stride != (1, 1) or problem.dilate != (1, 1) or problem.groups != 1:
        raise Declined("serves 3 x 3 kernels with stride 1, no dilation, no groups")
    if problem.dtype == "float64":
        raise Declined("float64 is asked for where rounding matters")
    if not problem.batch:
        raise Declined("no pixels")


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan the transform of the weights and the convolution; a part of the workspace for each work-item."""
    _check(problem, context)
    if problem.direction == "forward":
        source, target = "x", "y"
        channels, outputs = problem.in_channels, problem.out_channels
        source_size, target_size = problem.in_size, problem.out_size
        begin = tuple(-p for p in problem.pad_begin)
        steps = (channels * 9, 9)
    else:
        source, target = "dy", "dx"
        channels, outputs = problem.out_channels, problem.in_channels
        source_size, target_size = problem.out_size, problem.in_size
        begin = tuple(p - 2 for p in problem.pad_begin)
        steps = (9, outputs * 9)
    pixels = problem.batch * target_size[0] * target_size[1]
    all_tiles = problem.batch * -(-target_size[0] // 4) * -(-target_size[1] // 4)
    if not worthwhile(all_tiles, channels, outputs, pixels):
        raise Declined("its transforms would cost more than they save")
    tile = _register_tile(context, outputs)
    defines = {**tile.defines(), "ROWS": GROUP_ROWS}
    tile_h, tile_w = (-(-size // 4) for size in target_size)
    all_rows = problem.batch * tile_h
    blocks = -(-outputs // tile.columns)
    padded_channels = -(-channels // CHUNK) * CHUNK

    cores = context.device.compute_units
    row_items = min(cores, all_rows)
    block_items = min(blocks, -(-cores // row_items))
    rows_of_item = -(-all_rows // row_items)
    most_rows = max(SLICE_BYTES // (ELEMENTS * 4 * (padded_channels + tile.columns) * tile_w), 1, 32 // tile_w)
    block_rows = -(-rows_of_item // -(-rows_of_item // min(most_rows, rows_of_item)))
    row_items, block_items = -(-all_rows // rows_of_item), -(-blocks // -(-blocks // block_items))
    tiles = -(-block_rows * tile_w // tile.rows) * tile.rows
    slice_bytes = ELEMENTS * tiles * (padded_channels + tile.columns) * 4
    group = min(GROUP_ROWS, block_rows)
    pixel_bytes = ((group * 4 + 2) * (tile_w * 4 + 2) + tile.lanes) * tile.lanes * 4
    if pixel_bytes > context.device.local_memory - 4096:
        raise Declined(f"rows of {target_size[1]} pixels do not fit local memory")

    weight_bytes = -(-ELEMENTS * blocks * tile.columns * channels * 4 // ALIGN) * ALIGN
    weights = Launch(
        context.kernel("winograd_cpu.cl", "winograd_weights", defines, problem.dtype, OPTIONS),
        (-(-outputs // tile.lanes), -(-channels // WEIGHT_CHANNELS)),
        (1, 1),
        (
            *(Buffer("w"), Workspace(0)),
            *ints(channels, outputs),
            *(Constant(np.int64(step)) for step in steps),
            *ints(problem.direction == "backward_data", WEIGHT_CHANNELS),
        ),
        (target,),
    )
    product = Launch(
        context.kernel("winograd_cpu.cl", "winograd", defines, problem.dtype, OPTIONS),
        (row_items, block_items),
        (1, 1),
        (
            *(Buffer(source), Workspace(0), Buffer("b" if problem.bias else source), Buffer(target)),
            Workspace(weight_bytes),
            *ints(problem.bias),
            Accumulate(target),
            *ints(problem.batch, channels, outputs, *source_size, *target_size, *begin),
            *ints(rows_of_item, block_rows, -(-blocks // block_items)),
            Local(pixel_bytes),
        ),
        (target,),
    )
    return Steps((weights, product), weight_bytes + row_items * block_items * slice_bytes)
