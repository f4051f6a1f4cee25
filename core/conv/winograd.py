"""Winograd's convolution F(4x4, 3x3) on CPU devices: 3 x 3 kernels with stride 1 in all directions.

A quarter of the multiplications of the direct method, at about four times its rounding error.
Lavin and Gray, Fast algorithms for convolutional neural networks, 2015. ``CLGRAFT_WINOGRAD=off`` forbids it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

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
PIXEL_BYTES = 128 * 1024  # of the pixels that are transposed at once
ELEMENTS = 36
PAD = 48  # elements between them, as in the kernels
SLICE_BYTES = 768 * 1024  # of the L2 cache
OWN_WEIGHTS_BYTES = 6 * 2**20  # of a core's part of the L3 cache
PART_BYTES = 2 * 2**20  # of a core's caches
MOST_PARTS = 64
# what is searched: bytes of a slice, and parts of a filter's gradient
SLICES = (384 * 1024, 768 * 1024, 1536 * 1024)
MOST_SLICE_BYTES = 16 * 2**20
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
RESULT_CHANNELS = 16  # of a work-item of filter_result, the kernels' CHANNELS
WEIGHT_CHANNELS = 32  # of a work-item that transforms weights


def worthwhile(tiles: int, channels: int, outputs: int, pixels: int) -> bool:
    """Whether the transforms cost less than the multiplications that they save; in cycles of a core, roughly."""
    transforms = tiles * (channels + outputs) * 18 + ELEMENTS * channels * outputs / 4
    return transforms + tiles * channels * outputs * ELEMENTS / 32 < pixels * channels * outputs * 9 / 32


def register_tile(context: Context, outputs: int) -> Tile:
    lanes = context.device.vector_width
    rows = {4: 6, 3: 8, 2: 12} if lanes >= 16 else {3: 4, 2: 6}
    vectors = min(rows, key=lambda v: (-(-outputs // (v * lanes)) * v, -v))
    return Tile(rows[vectors], vectors, lanes)


def _group_rows(context: Context, tile_w: int, lanes: int) -> tuple[int, int]:
    """Give how many tile rows are transposed at once, the kernels' ROWS, and the bytes of their pixels."""
    for rows in (4, 2, 1):
        nbytes = ((rows * 4 + 2) * (tile_w * 4 + 2) + lanes) * lanes * 4
        if nbytes <= min(PIXEL_BYTES, context.device.local_memory // 2) or rows == 1:
            break
    if nbytes > context.device.local_memory - 4096:
        raise Declined(f"rows of {tile_w} tiles do not fit {context.device.local_memory} bytes of local memory")
    return rows, nbytes


def _check(problem: ConvProblem, context: Context) -> None:
    """Decline what the method does not serve, and what it would not speed up."""
    if os.environ.get("CLGRAFT_WINOGRAD", "").lower() in ("off", "0"):
        raise Declined("CLGRAFT_WINOGRAD is off")
    if not context.device.is_cpu or context.device.vector_width < 8:
        raise Declined("made for CPU devices with vectors of 8 or more")
    if problem.direction == "backward_bias":
        raise Declined("has no backward_bias")
    if problem.kernel != (3, 3) or problem.stride != (1, 1) or problem.dilate != (1, 1) or problem.groups != 1:
        raise Declined("serves 3 x 3 kernels with stride 1, no dilation, no groups")
    if problem.dtype == "float64":
        raise Declined("float64 is asked for where rounding matters")
    if not problem.batch:
        raise Declined("no pixels")


class Split(NamedTuple):
    """A work-item's tile rows, how many of them at a time, its blocks of outputs, and who transforms the weights."""

    rows: int
    block_rows: int
    blocks: int
    own_weights: bool


def _split(cores: int, all_rows: int, tile_w: int, blocks: int, padded_channels: int, tile: Tile) -> Split:
    """Give every core tile rows of its own; where all tiles are few, blocks of outputs and their weights instead."""
    row_bytes = ELEMENTS * 4 * (padded_channels + tile.columns) * tile_w
    if blocks >= cores and all_rows * row_bytes <= OWN_WEIGHTS_BYTES:
        return Split(all_rows, all_rows, -(-blocks // cores), True)
    row_items = min(cores, all_rows)
    rows = -(-all_rows // row_items)
    most_rows = max(SLICE_BYTES // row_bytes, 1, 32 // tile_w)
    block_rows = -(-rows // -(-rows // min(most_rows, rows)))
    return Split(rows, block_rows, -(-blocks // min(blocks, -(-cores // row_items))), False)


def candidates(problem: ConvProblem, context: Context) -> Iterator[Mapping[str, int | str]]:
    """Give the settings to search: the heuristic's (none), then other splits of the work.

    ``rows`` of tiles of a work-item, ``block_rows`` of them at a time, its ``blocks`` of outputs, and ``own``: whether
    it transforms its weights itself. For filters the number of ``parts``.
    """
    _check(problem, context)
    yield {}
    cores = context.device.compute_units
    if problem.direction == "backward_filter":
        all_rows = problem.batch * -(-problem.out_size[0] // 4)
        for parts in sorted({min(parts, all_rows) for parts in PARTS}):
            yield {"parts": parts}
        return
    forward = problem.direction == "forward"
    target_size = problem.out_size if forward else problem.in_size
    channels, outputs = (problem.in_channels, problem.out_channels)[:: 1 if forward else -1]
    tile = register_tile(context, outputs)
    tile_h, tile_w = (-(-size // 4) for size in target_size)
    all_rows, blocks = problem.batch * tile_h, -(-outputs // tile.columns)
    row_bytes = ELEMENTS * 4 * (-(-channels // CHUNK) * CHUNK + tile.columns) * tile_w
    splits: dict[Split, None] = {}
    for items in (cores, 2 * cores, 4 * cores):
        row_items = min(items, all_rows)
        rows = -(-all_rows // row_items)
        for nbytes in SLICES:
            block_rows = -(-rows // -(-rows // min(max(nbytes // row_bytes, 1), rows)))
            splits[Split(rows, block_rows, -(-blocks // min(blocks, -(-cores // row_items))), False)] = None
    for parts in (1, cores, 2 * cores):
        if parts <= blocks:
            splits[Split(all_rows, all_rows, -(-blocks // parts), True)] = None
    for split in splits:
        if split.block_rows * row_bytes <= MOST_SLICE_BYTES:
            yield {**split._asdict(), "own_weights": int(split.own_weights)}


def _given_split(chosen: Mapping[str, int], all_rows: int, blocks: int) -> Split:
    if set(chosen) != set(Split._fields):
        raise Declined(f"got settings {dict(chosen)}, expected {Split._fields}")
    split = Split(chosen["rows"], chosen["block_rows"], chosen["blocks"], bool(chosen["own_weights"]))
    good = 1 <= split.block_rows <= split.rows <= all_rows and 1 <= split.blocks <= blocks
    if not good or (split.own_weights and split.block_rows != all_rows):
        raise Declined(f"{split} does not split {all_rows} rows and {blocks} blocks")
    return split


def plan(problem: ConvProblem, context: Context, settings: Mapping[str, int | str] | None = None) -> Steps:
    """Plan the transform of the weights and the convolution, with a slice of the workspace for each work-item."""
    _check(problem, context)
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if problem.direction == "backward_filter":
        return plan_filter(problem, context, chosen)
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
    tile = register_tile(context, outputs)
    tile_h, tile_w = (-(-size // 4) for size in target_size)
    group_rows, pixel_bytes = _group_rows(context, tile_w, tile.lanes)
    defines = {**tile.defines(), "ROWS": group_rows}
    all_rows = problem.batch * tile_h
    blocks = -(-outputs // tile.columns)
    padded_channels = -(-channels // CHUNK) * CHUNK

    if chosen:
        split = _given_split(chosen, all_rows, blocks)
    else:
        split = _split(context.device.compute_units, all_rows, tile_w, blocks, padded_channels, tile)
    tiles = -(-split.block_rows * tile_w // tile.rows) * tile.rows
    slice_size = tiles * (padded_channels + tile.columns) + 2 * PAD
    if split.own_weights:
        slice_size += channels * tile.columns + PAD
    slice_bytes = ELEMENTS * slice_size * 4
    launches = []
    weight_bytes = 0
    weight_steps = [Constant(np.int64(step)) for step in steps]
    flip = problem.direction == "backward_data"
    if not split.own_weights:
        weight_bytes = -(-ELEMENTS * (blocks * tile.columns * channels + PAD) * 4 // ALIGN) * ALIGN
        launches.append(
            Launch(
                context.kernel("winograd_cpu.cl", "winograd_weights", defines, problem.dtype, OPTIONS),
                (-(-outputs // tile.lanes), -(-channels // WEIGHT_CHANNELS)),
                (1, 1),
                (
                    *(Buffer("w"), Workspace(0)),
                    *ints(channels, outputs),
                    *weight_steps,
                    *ints(flip, WEIGHT_CHANNELS),
                ),
                (target,),
            )
        )
    launches.append(
        Launch(
            context.kernel("winograd_cpu.cl", "winograd", defines, problem.dtype, OPTIONS),
            (-(-all_rows // split.rows), -(-blocks // split.blocks)),
            (1, 1),
            (
                *(Buffer(source), Workspace(0), Buffer("w"), Buffer("b" if problem.bias else source), Buffer(target)),
                *(Workspace(weight_bytes), *weight_steps),
                *ints(flip, split.own_weights, problem.bias),
                Accumulate(target),
                *ints(problem.batch, channels, outputs, *source_size, *target_size, *begin),
                *ints(split.rows, split.block_rows, split.blocks),
                Local(pixel_bytes),
            ),
            (target,),
        )
    )
    items = -(-all_rows // split.rows) * -(-blocks // split.blocks)
    return Steps(tuple(launches), weight_bytes + items * slice_bytes)


def plan_filter(problem: ConvProblem, context: Context, chosen: Mapping[str, int]) -> Steps:
    """Plan the gradient of the weights: parts of the tiles, transformed and multiplied one after the other."""
    channels, outputs = problem.in_channels, problem.out_channels
    tile_h, tile_w = (-(-size // 4) for size in problem.out_size)
    all_rows = problem.batch * tile_h
    if not worthwhile(all_rows * tile_w, channels, outputs, problem.batch * prod(problem.out_size)):
        raise Declined("its transforms would cost more than they save")
    tile = register_tile(context, outputs)
    group_rows, pixel_bytes = _group_rows(context, tile_w, tile.lanes)
    defines = {**tile.defines(), "ROWS": group_rows}
    blocks, chunks = -(-outputs // tile.columns), -(-channels // CHUNK)
    row_bytes = ELEMENTS * 4 * (chunks * CHUNK + blocks * tile.columns) * tile_w
    parts = min(-(-all_rows * row_bytes // (PART_BYTES * context.device.compute_units)), MOST_PARTS, all_rows)
    if chosen:
        parts = chosen.get("parts", 0)
        if set(chosen) != {"parts"} or not 1 <= parts <= all_rows:
            raise Declined(f"got settings {dict(chosen)}, expected parts from 1 to {all_rows}")
    part_rows = -(-all_rows // parts)
    tiles = part_rows * tile_w
    source_bytes = -(-ELEMENTS * (chunks * tiles * CHUNK + PAD) * 4 // ALIGN) * ALIGN
    gradient_bytes = -(-ELEMENTS * (blocks * tiles * tile.columns + PAD) * 4 // ALIGN) * ALIGN
    product_bytes = ELEMENTS * (blocks * channels * tile.columns + PAD) * 4
    source, gradient = Workspace(0), Workspace(source_bytes)
    product = Workspace(source_bytes + gradient_bytes)

    def launch(name: str, size: tuple[int, ...], *arguments: Any) -> Launch:
        kernel = context.kernel("winograd_cpu_filter.cl", name, defines, problem.dtype, OPTIONS)
        return Launch(kernel, size, (1,) * len(size), arguments, ("dw",))

    begin = tuple(-p for p in problem.pad_begin)
    launches = []
    for first in range(0, all_rows, part_rows):
        rows = min(part_rows, all_rows - first)
        part = ints(first, rows, tiles, group_rows)
        row_blocks = -(-rows // group_rows)
        launches += [
            launch(
                "filter_source",
                (row_blocks, -(-channels // tile.lanes)),
                *(Buffer("x"), source),
                *ints(problem.batch, channels, *problem.in_size, *begin, tile_h, tile_w),
                *(*part, Local(pixel_bytes)),
            ),
            launch(
                "filter_gradient",
                (row_blocks, -(-outputs // tile.lanes)),
                *(Buffer("dy"), gradient),
                *ints(problem.batch, outputs, *problem.out_size, tile_h, tile_w),
                *(*part, Local(pixel_bytes)),
            ),
            launch(
                "filter_product",
                (chunks, blocks, ELEMENTS),
                *(source, gradient, product),
                *ints(channels, outputs, rows * tile_w, tiles, first > 0),
            ),
        ]
    launches.append(
        launch(
            "filter_result",
            (-(-outputs // tile.lanes), -(-channels // RESULT_CHANNELS)),
            *(product, Buffer("dw"), Accumulate("dw")),
            *ints(channels, outputs),
        )
    )
    return Steps(tuple(launches), source_bytes + gradient_bytes + product_bytes)
