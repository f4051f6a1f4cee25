"""Backward data for few input channels on GPUs: every work-item makes all phases of the stride and all channels.

A product of matrices would have as many rows as there are input channels, 3 for the first convolution of a net, and
pad them up to a tile's. Here the taps are unrolled, so that each finds its phase, and a work-item multiplies what it
has read of ``dy`` by the weights of all of them. At stride 1 forward for few output channels is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import product
from math import gcd, prod
from typing import Any

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "few_channels_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it

MOST_CHANNELS = 4  # beyond, a product of matrices has rows enough
MOST_WEIGHTS = 640  # weights of an output channel: they are unrolled
MOST_SUMS = 100  # registers of a work-item for its sums, in elements of 4 bytes
MOST_NEAR = 64  # and for what it has read of dy
MOST_STEP = 4  # output channels of a step
MOST_AHEAD = 24  # elements that a work-item reads ahead, about
BUSY_ITEMS = 256  # work-items that keep a compute unit busy
FETCH = 8  # the cost of an element that goes to local memory, in products
LONG_CODE = 700  # products that are unrolled before their code leaves the first cache
BANKS = 32  # banks of local memory
LARGEST = 2**31 - 1
# the fraction of a GPU's best speed, next to a product of matrices that pads its rows to PADDED_ROWS
SPEED, PADDED_ROWS, PADDED_SPEED = 0.6, 16, 0.65

SHAPES = ((32, 4), (16, 8), (8, 16), (16, 4), (8, 8), (8, 4))
MOST_GROUP = 256  # work-items of a work-group: more would have too few registers each
PIXELS = (8, 7, 4, 2, 1)
SLICES = (1, 2, 4)


@dataclass(frozen=True)
class PixelTile:
    """Work-items along and across the rows of the grid, the pixels of each, and how many of them share a pixel.

    `parts` share its rows of phases, `slices` its output channels.
    """

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
class ConvAxis:
    """An axis of the convolution and of its grid of `size` pixels.

    In dy its taps have `reach` distances, the least of which is `first`. A work-item multiplies `taps` of them for
    each pixel, and reads `more` elements of dy than it has pixels.
    """

    kernel: int
    stride: int
    pad: int
    dilate: int
    size: int
    first: int
    reach: int
    taps: int
    more: int

    @classmethod
    def whole(cls, size: int, kernel: int, stride: int, pad: int, dilate: int) -> ConvAxis:
        """Return an axis of `size` elements of dx all of whose phases a work-item makes."""
        first, last = ceil_div(pad - dilate * (kernel - 1), stride), (stride - 1 + pad) // stride
        reach = last - first + 1
        return cls(kernel, stride, pad, dilate, ceil_div(size, stride), first, reach, kernel, reach - 1)

    @property
    def tap_step(self) -> int:
        """The distance of neighbouring taps of a phase."""
        return self.stride // gcd(self.stride, self.dilate)

    def split(self) -> ConvAxis:
        """Return the axis for work-items that make one phase each."""
        taps = ceil_div(self.kernel, self.tap_step)
        more = (taps - 1) * (self.dilate * self.tap_step // self.stride)
        # each tap up to tap_step is the first one of a phase
        starts = [
            (self.pad - self.dilate * tap + (self.dilate * tap - self.pad) % self.stride) // self.stride
            for tap in range(min(self.tap_step, self.kernel))
        ]
        first = min(starts) - more
        return replace(self, first=first, reach=max(starts) - first + 1, taps=taps, more=more)


Axes = tuple[ConvAxis, ConvAxis]


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then every ``tile`` that a work-item has registers for."""
    yield {}
    try:
        tiles = _fitting(_as_gradient(problem), planner)
    except Declined:
        return
    for tile in tiles:
        yield {"tile": tile.name}


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan one launch."""
    gradient = _as_gradient(problem)
    channels = gradient.in_channels // gradient.groups
    if prod(gradient.kernel) == 1:
        raise Declined("shares nothing between taps where there is one")
    weights = prod(gradient.kernel) * channels
    if channels > MOST_CHANNELS or weights > MOST_WEIGHTS:
        kind = "output" if problem.direction == "forward" else "input"
        raise Declined(f"is for at most {MOST_CHANNELS} {kind} channels, and unrolls {MOST_WEIGHTS} weights")
    most = max(weights, prod(gradient.out_size))
    image = max(gradient.in_channels * prod(gradient.in_size), gradient.out_channels * most)
    if image > LARGEST:
        raise Declined(f"counts an image in 32 bits, got {image} elements")
    fitting = _fitting(gradient, planner)
    if settings:
        fitting = {tile: axes for tile, axes in fitting.items() if {"tile": tile.name} == dict(settings)}
    if settings and not fitting:
        raise Declined(f"got settings {dict(settings)}, expected one of the tiles that `candidates` lists")
    if not fitting:
        raise Declined("a work-item has too few registers for all phases")
    times = {tile: _time(tile, gradient, axes, planner) for tile, axes in fitting.items()}
    tile = min(times, key=lambda each: times[each])
    useful = gradient.batch * gradient.groups * prod(axis.size for axis in fitting[tile]) * weights
    padded = useful * PADDED_ROWS / channels / PADDED_SPEED / planner.device.compute_units
    if not settings and times[tile] / SPEED > padded:
        raise Declined("would leave most work-items outside of such small planes")
    macros, bound = _kernel_of(gradient, planner, tile, fitting[tile])
    work_groups = prod(_groups(tile, gradient, fitting[tile]))
    if work_groups > LARGEST:
        raise Declined(f"{work_groups} work-groups are more than {LARGEST}")
    macros.update(FORWARD=int(problem.direction == "forward"), **epilogue_defines(epilogue))
    source, target = ("x", "y") if problem.direction == "forward" else ("dy", "dx")
    tensors = (Buffer("w"), Buffer(source), Buffer("b" if problem.bias else "w"), Buffer(target))
    launch = Launch(
        planner.kernel("conv/few_channels_gpu.cl", "conv_few_channels", macros, problem.dtype),
        (work_groups * tile.threads,),
        (tile.threads,),
        (
            *(*tensors, *ints(problem.bias), Accumulate(target)),
            *(*bound, *epilogue_arguments(epilogue, problem.dtype)),
        ),
        (target,),
    )
    return Launches((launch,))


def _as_gradient(problem: ConvProblem) -> ConvProblem:
    """Return the backward data that a problem is; forward at stride 1 is that of y, with the weights backwards.

    Raises
    ------
    Declined
        If it is none.
    """
    if problem.direction not in ("forward", "backward_data"):
        raise Declined("is for forward and backward_data")
    if problem.ndim > 2:
        raise Declined("has one or two spatial axes")
    if problem.direction == "backward_data":
        return problem
    if set(problem.stride) != {1}:
        raise Declined("serves forward at stride 1")
    pads = [
        tuple(d * (k - 1) - p for k, d, p in zip(problem.kernel, problem.dilate, pad))
        for pad in (problem.pad_begin, problem.pad_end)
    ]
    if min(min(pad) for pad in pads) < 0:
        raise Declined("serves no padding beyond the kernel's reach")
    return replace(
        problem,
        direction="backward_data",
        in_channels=problem.out_channels,
        out_channels=problem.in_channels,
        in_size=problem.out_size,
        pad_begin=pads[0],
        pad_end=pads[1],
        bias=False,
    )


def _fitting(problem: ConvProblem, planner: Planner) -> dict[PixelTile, Axes]:
    """Return the tiles that a work-item and a work-group have room for, with the axes as they see them."""
    found = [ConvAxis.whole(1, 1, 1, 0, 1)] * (2 - problem.ndim)
    sizes = (problem.in_size, problem.kernel, problem.stride, problem.pad_begin, problem.dilate)
    found += [ConvAxis.whole(*numbers) for numbers in zip(*sizes)]
    high, wide = found
    fitting = {}
    for parts in sorted({1, high.stride}):
        axes = (high.split() if parts > 1 else high, wide)
        for (width, height), pixels, slices in product(SHAPES, PIXELS, SLICES):
            tile = PixelTile(width, height, pixels, parts, slices)
            if _fits(tile, problem, axes, planner):
                fitting[tile] = axes
    return fitting


def _weights(problem: ConvProblem, axes: Axes) -> int:
    """Return the weights of an output channel that a work-item multiplies by, rounded up to whole vectors."""
    return round_up(axes[0].taps * axes[1].taps * (problem.in_channels // problem.groups), 4)


def _pitch(tile: PixelTile, columns: int) -> int:
    """Return the elements from row to row of a tile of dy: of a few, where work-items in step meet fewest in a bank."""

    def met(pitch: int) -> int:
        places = [item // tile.width * tile.pixels * pitch + item % tile.width for item in range(BANKS)]
        return max(Counter(place % BANKS for place in places).values())

    return min(range(columns, columns + BANKS // 4), key=met)


def _tile_elements(tile: PixelTile, axes: Axes) -> int:
    """Return the elements of a tile of dy."""
    high, wide = axes
    return (tile.height * tile.pixels + high.reach - 1) * _pitch(tile, tile.width + wide.reach - 1)


def _step(tile: PixelTile, problem: ConvProblem, axes: Axes) -> int:
    """Return the output channels of a step."""
    each = ceil_div(_tile_elements(tile, axes), tile.threads) + _weights(problem, axes) * tile.parts / tile.threads
    return max(1, min(MOST_STEP, int(MOST_AHEAD / each) // tile.slices)) * tile.slices


def _fits(tile: PixelTile, problem: ConvProblem, axes: Axes, planner: Planner) -> bool:
    """Return whether a work-item has registers and a work-group has local memory for a tile."""
    high, wide = axes
    size, channels = arithmetic_bytes(problem.dtype), problem.in_channels // problem.groups
    sums = high.stride // tile.parts * wide.stride * channels * tile.pixels
    near = (tile.pixels + high.more) * wide.reach
    held = _tile_elements(tile, axes) + _weights(problem, axes) * tile.parts
    return (
        sums <= MOST_SUMS * 4 // size
        and near <= MOST_NEAR * 4 // size
        and 2 * _step(tile, problem, axes) * held * size <= planner.device.local_memory
        and tile.threads <= min(MOST_GROUP, planner.device.max_work_group_size)
    )


def _groups(tile: PixelTile, problem: ConvProblem, axes: Axes) -> tuple[int, int, int]:
    """Return the images and groups of channels, and the tiles across and along the rows."""
    high, wide = axes
    return (
        problem.batch * problem.groups,
        ceil_div(high.size, tile.height * tile.pixels),
        ceil_div(wide.size, tile.width),
    )


def _time(tile: PixelTile, problem: ConvProblem, axes: Axes, planner: Planner) -> float:
    """Estimate the time for an output channel, in products of a busy compute unit; zero weights count, too."""
    items, weights = tile.width * tile.height * tile.parts, _weights(problem, axes)
    groups, at_once = prod(_groups(tile, problem, axes)), max(1, BUSY_ITEMS // tile.threads)
    each = ceil_div(groups, planner.device.compute_units)
    busy = min(1.0, each * tile.threads / BUSY_ITEMS)
    each = each if each < at_once else at_once * ceil_div(groups, planner.device.compute_units * at_once)
    # a weight is read once for all pixels of a work-item; slices share the tile, and add up in the end
    work = weights * (1 + 0.5 / tile.pixels) * (1 + 0.02 * tile.slices)
    work *= 1.5 if weights * tile.pixels > LONG_CODE else 1
    work += FETCH * (_tile_elements(tile, axes) + weights * tile.parts) / (items * tile.pixels)
    return each * items * tile.pixels * work / busy


def _kernel_of(
    problem: ConvProblem, planner: Planner, tile: PixelTile, axes: Axes
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return a kernel's macros, and its arguments that are numbers."""
    _, tiles_h, tiles_w = _groups(tile, problem, axes)
    device = planner.device
    macros: dict[str, Any] = {
        "VL": 4,
        "SCALAR_ITEMS": int(device.vectorizes_items),
        "CHANNELS": problem.in_channels // problem.groups,
        "TILE_W": tile.width,
        "TILE_H": tile.height,
        "ITEM_PIXELS": tile.pixels,
        "PARTS": tile.parts,
        "SLICES": tile.slices,
        "STEP": _step(tile, problem, axes),
        "PITCH": _pitch(tile, tile.width + axes[1].reach - 1),
        "TAP_STEP": axes[0].tap_step,
        "FIRST_H": axes[0].first,
        "REACH_H": axes[0].reach,
    }
    for letter, axis in zip("HW", axes):
        macros |= {f"K{letter}": axis.kernel, f"S{letter}": axis.stride, f"P{letter}": axis.pad}
        macros[f"D{letter}"] = axis.dilate
    ih, iw = (1, *problem.in_size)[-2:]
    oh, ow = (1, *problem.out_size)[-2:]
    return macros, ints(problem.groups, problem.out_channels // problem.groups, ih, iw, oh, ow, tiles_h, tiles_w)
