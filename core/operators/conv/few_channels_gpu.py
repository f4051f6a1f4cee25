"""Backward data for few input channels on GPUs: every work-item makes all phases of the stride and all channels.

A product of matrices would have as many rows as there are input channels, 3 for the first convolution of a net, and
pad them up to a tile's. Here the taps are unrolled, so that each finds its phase, and a work-item multiplies what it
has read of ``dy`` by the weights of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import product
from math import prod
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "few_channels_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it

MOST_CHANNELS = 8  # from there on a product of matrices has rows enough
MOST_WEIGHTS = 640  # of an output channel: they are unrolled
MOST_SUMS = 100  # registers of a work-item for its sums, in elements of 4 bytes
MOST_NEAR = 64  # and for what it has read of dy
MOST_STEP = 4  # output channels of a step
MOST_AHEAD = 24  # elements that a work-item reads ahead, about
BUSY_ITEMS = 512  # work-items that keep a compute unit busy
LARGEST = 2**31 - 1
# the fraction of a GPU's best speed, next to a product of matrices that pads its rows to PADDED_ROWS
SPEED, PADDED_ROWS, PADDED_SPEED = 0.6, 16, 0.65


@dataclass(frozen=True)
class Tile:
    """Work-items along and across the rows of the grid, the pixels of each, and how many share a pixel's phases and
    its output channels."""

    width: int
    height: int
    pixels: int
    parts: int
    slices: int

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.width * self.height * self.parts * self.slices

    @property
    def name(self) -> str:
        """The tile as a setting."""
        return "x".join(map(str, astuple(self)))


@dataclass(frozen=True)
class Axis:
    """An axis of the convolution and of its grid: ``size`` pixels, which meet ``reach`` elements of dy."""

    kernel: int
    stride: int
    pad: int
    dilate: int
    size: int
    reach: int


SHAPES = ((32, 4), (16, 8), (8, 16), (32, 2), (16, 4), (8, 8))
PIXELS = (8, 4, 2, 1)
PARTS = SLICES = (1, 2, 4)


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then every ``tile``."""
    yield {}
    for tile in _tiles():
        yield {"tile": tile.name}


def plan(problem: ConvProblem, planner: Planner, settings: Mapping[str, int | str] | None = None) -> Launches:
    """Plan one launch."""
    device, channels = planner.device, problem.in_channels // problem.groups
    if problem.direction != "backward_data":
        raise Declined("is for backward_data")
    axes = _axes(problem)
    sums = prod(axis.stride for axis in axes) * channels
    weights = prod(problem.kernel) * channels
    if channels > MOST_CHANNELS or weights > MOST_WEIGHTS:
        raise Declined(f"is for at most {MOST_CHANNELS} input channels, and unrolls {MOST_WEIGHTS} weights")
    size = arithmetic_bytes(problem.dtype)
    if problem.in_channels * prod(problem.in_size) > LARGEST or problem.out_channels * prod(problem.out_size) > LARGEST:
        raise Declined("counts an image in 32 bits")
    fitting = [tile for tile in _tiles() if _fits(tile, axes, sums, weights, size, planner)]
    if settings:
        fitting = [tile for tile in fitting if {"tile": tile.name} == dict(settings)]
    if not fitting:
        raise Declined(f"{sums} sums and {weights} weights of an output channel do not fit a work-item")
    times = {tile: _time(tile, problem, axes, weights, planner) for tile in fitting}
    tile = min(times, key=lambda each: times[each])
    useful = problem.batch * problem.groups * prod(axis.size for axis in axes) * weights
    padded = useful * PADDED_ROWS / channels / PADDED_SPEED / device.compute_units
    if not settings and channels < PADDED_ROWS and times[tile] / SPEED > padded:
        raise Declined("would leave most work-items outside of such small planes")
    return _launch(problem, planner, tile, axes, weights)


def _axes(problem: ConvProblem) -> tuple[Axis, Axis]:
    """Return both axes; one axis is the row."""
    if problem.ndim > 2:
        raise Declined("has one or two spatial axes")
    found = [Axis(1, 1, 0, 1, 1, 1)] * (2 - problem.ndim)
    for i, k, s, p, d in zip(problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate):
        reach = (s - 1 + p) // s - ceil_div(p - d * (k - 1), s) + 1
        found.append(Axis(k, s, p, d, ceil_div(i, s), reach))
    return found[0], found[1]


def _tiles() -> Iterator[Tile]:
    for (width, height), *numbers in product(SHAPES, PIXELS, PARTS, SLICES):
        yield Tile(width, height, *numbers)


def _pitch(tile: Tile, columns: int) -> int:
    """Return the elements from row to row of a tile of dy, so that the rows of work-items in step use all banks."""
    if tile.width >= 32:
        return columns
    # `pixels` rows on is `width` banks on, or that many banks back
    return next(
        (
            pitch
            for pitch in range(columns, columns + 32)
            if (tile.pixels * pitch - tile.width) % 32 == 0 or (tile.pixels * pitch + tile.width) % 32 == 0
        ),
        columns,
    )


def _tile_elements(tile: Tile, axes: tuple[Axis, Axis]) -> int:
    """Return the elements of a tile of dy."""
    high, wide = axes
    return (tile.height * tile.pixels + high.reach - 1) * _pitch(tile, tile.width + wide.reach - 1)


def _step(tile: Tile, axes: tuple[Axis, Axis], weights: int) -> int:
    """Return the output channels of a step: as many as a work-item has registers for what it reads ahead."""
    each = ceil_div(_tile_elements(tile, axes), tile.threads) + weights / tile.threads
    return max(1, min(MOST_STEP, int(MOST_AHEAD / each) // tile.slices)) * tile.slices


def _fits(tile: Tile, axes: tuple[Axis, Axis], sums: int, weights: int, size: int, planner: Planner) -> bool:
    """Whether a work-item has registers and a work-group has local memory for a tile."""
    near = (tile.pixels + axes[0].reach - 1) * axes[1].reach
    registers = sums // tile.parts * tile.pixels <= MOST_SUMS * 4 // size and near <= MOST_NEAR * 4 // size
    held = 2 * _step(tile, axes, weights) * (_tile_elements(tile, axes) + round_up(weights, 4)) * size
    fits = held <= planner.device.local_memory and tile.threads <= planner.device.max_work_group_size
    return registers and fits and axes[0].stride % tile.parts == 0


def _groups(tile: Tile, problem: ConvProblem, axes: tuple[Axis, Axis]) -> tuple[int, int, int]:
    """Return the images and groups of channels, and the tiles across and along the rows."""
    high, wide = axes
    return (
        problem.batch * problem.groups,
        ceil_div(high.size, tile.height * tile.pixels),
        ceil_div(wide.size, tile.width),
    )


def _time(tile: Tile, problem: ConvProblem, axes: tuple[Axis, Axis], weights: int, planner: Planner) -> float:
    """Estimate the time for an output channel, in products of a busy compute unit."""
    each = ceil_div(prod(_groups(tile, problem, axes)), planner.device.compute_units)
    items = tile.width * tile.height
    busy = min(1.0, each * tile.threads / BUSY_ITEMS)
    # a weight is read once for all pixels of a work-item; slices share the tile, and add up in the end
    work = weights * (1 + 0.5 / tile.pixels) * (1 + 0.02 * tile.slices)
    work += 2.0 * _tile_elements(tile, axes) / (items * tile.pixels)
    return each * items * tile.pixels * work / busy


def _launch(
    problem: ConvProblem, planner: Planner, tile: Tile, axes: tuple[Axis, Axis], weights: int
) -> Launches:
    images, tiles_h, tiles_w = _groups(tile, problem, axes)
    work_groups, threads = images * tiles_h * tiles_w, tile.threads
    if work_groups > LARGEST:
        raise Declined(f"{work_groups} work-groups are more than {LARGEST}")
    device = planner.device
    macros: dict[str, Any] = {
        "VL": 4,
        "SCALAR_ITEMS": int(device.is_cpu and "Intel" in device.platform),
        "CHANNELS": problem.in_channels // problem.groups,
        "TILE_W": tile.width,
        "TILE_H": tile.height,
        "ITEM_PIXELS": tile.pixels,
        "PARTS": tile.parts,
        "SLICES": tile.slices,
        "STEP": _step(tile, axes, weights),
        "PITCH": _pitch(tile, tile.width + axes[1].reach - 1),
    }
    for letter, axis in zip("HW", axes):
        macros |= {f"K{letter}": axis.kernel, f"S{letter}": axis.stride, f"P{letter}": axis.pad}
        macros[f"D{letter}"] = axis.dilate
    kernel = planner.kernel("conv/few_channels_gpu.cl", "conv_few_channels", macros, problem.dtype)
    ih, iw = (1, *problem.in_size)[-2:]
    oh, ow = (1, *problem.out_size)[-2:]
    bound = (
        *(Buffer("w"), Buffer("dy"), Buffer("dx"), Accumulate("dx")),
        *ints(problem.groups, problem.out_channels // problem.groups, ih, iw, oh, ow, tiles_h, tiles_w),
    )
    return Launches((Launch(kernel, (work_groups * threads,), (threads,), bound, ("dx",)),))
