"""Depthwise convolution in channels last on GPUs, all directions: a work-item has neighbouring channels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.channels_last.windows import pixel_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Workspace, ints
from clgraft.core.planning.structs import StructConstant
from clgraft.core.problem import ceil_div, in_3d

NAME = "pixels_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "conv/channels_last/depthwise_gpu.cl"
WEIGHTS, PIXELS, SPREAD, FILTER, SUM = range(5)  # the file's MAKES: what a program holds
GROUP = 128
WIDE = 4  # channels of a work-item
STRIPS = (4, 2, 1)  # pixels of a row that a work-item computes
MOST_SPAN = 12  # columns that these read together
MOST_TAPS, MOST_ROW_TAPS = 121, 11  # which are unrolled
MOST_SUMS = 9  # taps whose gradients a work-item keeps in registers
MOST_COLUMNS = 32  # work-items of a work-group along the channels
GROUPS_PER_UNIT = 8  # work-groups that each compute unit gets at most, for the gradient of filters
LEAST_STRIPS = 8  # of a work-item there
SUMMED = 8  # elements of the gradient that a work-group of the last launch adds up, as the kernels have it
LARGEST = 2**31 - 1


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one launch; for the gradient of the filters sums of parts, and their sum."""
    if planner.device.is_cpu:
        raise Declined("made for GPUs")
    if problem.direction == "backward_bias":
        raise Declined(f"has no {problem.direction}")
    if not problem.groups == problem.in_channels == problem.out_channels > 1:
        raise Declined("is for one filter for each of several channels")
    if problem.ndim > 2 or prod(problem.kernel) > MOST_TAPS or problem.kernel[-1] > MOST_ROW_TAPS:
        raise Declined(f"has one or two axes, and unrolls at most {MOST_TAPS} taps, {MOST_ROW_TAPS} of a row")
    if planner.device.max_work_group_size < GROUP:
        raise Declined(f"needs work-groups of {GROUP}")
    if max(argument.size for argument in problem.arguments()) + GROUP > LARGEST:
        raise Declined("counts elements in 32 bits")
    return getattr(_DepthwiseBuilder(problem, planner, epilogue), problem.direction)()


class _DepthwiseBuilder:
    """What the launches of a problem share."""

    def __init__(self, problem: ConvProblem, planner: Planner, epilogue: Epilogue | None) -> None:
        self.problem, self.planner, self.epilogue = problem, planner, epilogue
        self.wide = WIDE if problem.groups % WIDE == 0 else 1
        self.blocks = problem.groups // self.wide
        (_, self.kh, self.kw), (_, self.sh, self.sw) = in_3d(problem.kernel, 1), in_3d(problem.stride, 1)
        _, self.dh, self.dw = in_3d(problem.dilate, 1)

    def kernel(self, name: str, makes: int, **more: Any) -> Any:
        sizes = {"KH": self.kh, "KW": self.kw, "DH": self.dh, "DW": self.dw}
        defines = {**GRID.defines(), **sizes, "MAKES": makes, "GROUP": GROUP, "WIDE": self.wide, **more}
        return self.planner.kernel(FILE, name, defines, self.problem.dtype, MAD_ENABLE)

    def places(self, grid: StructConstant, rows: int, strips: int) -> tuple[tuple[Any, ...], int]:
        """Return how work-items find their places, and the items of a launch."""
        items = self.problem.batch * rows * strips * self.blocks
        numbers = (Constant(np.uint32(items)), *ints(self.blocks, strips, rows))
        return (grid, *numbers, *(divisor_argument(size) for size in (self.blocks, strips, rows))), items

    def strip(self, columns: int) -> int:
        """Return how many pixels of a row a work-item takes: their taps share columns, which registers hold."""
        spans = {strip: (strip - 1) * self.sw + (self.kw - 1) * self.dw + 1 for strip in STRIPS}
        return next(strip for strip in STRIPS if strip == 1 or (spans[strip] <= MOST_SPAN and strip <= columns))

    def weights(self, target: str, flip: bool) -> tuple[Workspace, Launch]:
        """Return where the weights of neighbouring channels lie together, and the launch that writes them."""
        count, size = self.kh * self.kw * self.problem.groups, arithmetic_bytes(self.problem.dtype)
        weights = Workspace(0, size)
        kernel = self.kernel("depthwise_pixels_weights", WEIGHTS)
        arguments = (Buffer("w"), weights, *ints(self.problem.groups, flip))
        grid = (ceil_div(count, GROUP) * GROUP,)
        return weights, Launch(kernel, grid, (GROUP,), arguments, (target,), (count * size,))

    def pixels(self, source: str, target: str, turned: bool) -> Launches:
        """Return the launch that takes the taps of each pixel."""
        problem = self.problem
        _, rows, columns = in_3d(problem.in_size if turned else problem.out_size, 1)
        strip = self.strip(columns)
        places, items = self.places(pixel_grid(self.problem, turned), rows, ceil_div(columns, strip))
        more = {"SH": self.sh, "SW": self.sw, "STRIP": strip, **epilogue_defines(self.epilogue)}
        weights, first = self.weights(target, turned)
        arguments = (
            *(Buffer(source), weights, Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target), *places),
            *epilogue_arguments(self.epilogue, problem.dtype),
        )
        kernel = self.kernel("depthwise_pixels", PIXELS, **more)
        rest = Launch(kernel, (ceil_div(items, GROUP) * GROUP,), (GROUP,), arguments, (target,))
        return Launches((first, rest), first.prepares[0])

    def forward(self) -> Launches:
        return self.pixels("x", "y", turned=False)

    def backward_data(self) -> Launches:
        if self.sh == self.sw == 1:
            return self.pixels("dy", "dx", turned=True)
        _, rows, columns = in_3d(self.problem.in_size, 1)
        places, items = self.places(pixel_grid(self.problem), rows, columns)
        kernel = self.kernel("depthwise_pixels_spread", SPREAD, SH=self.sh, SW=self.sw)
        weights, first = self.weights("dx", False)
        arguments = (Buffer("dy"), weights, Buffer("dx"), Accumulate("dx"), *places)
        rest = Launch(kernel, (ceil_div(items, GROUP) * GROUP,), (GROUP,), arguments, ("dx",))
        return Launches((first, rest), first.prepares[0])

    def backward_filter(self) -> Launches:
        problem, channels, taps = self.problem, self.problem.groups, self.kh * self.kw
        _, rows, columns = in_3d(problem.out_size, 1)
        tap_rows = self.kh if taps <= MOST_SUMS else 1
        across = min(MOST_COLUMNS, 1 << (self.blocks - 1).bit_length())
        lanes, groups = GROUP // across, ceil_div(self.blocks, across)
        strip, tap_groups = self.strip(columns), self.kh // tap_rows
        row_strips = ceil_div(columns, strip)
        strips = problem.batch * rows * row_strips
        wanted = ceil_div(self.planner.device.compute_units * GROUPS_PER_UNIT, groups * tap_groups)
        part_strips = ceil_div(strips, max(1, min(wanted, strips // (LEAST_STRIPS * lanes))))
        parts = ceil_div(strips, part_strips)
        size = arithmetic_bytes(problem.dtype)
        partial = Workspace(0, size)
        more = {"SH": self.sh, "SW": self.sw, "STRIP": strip, "TAP_ROWS": tap_rows, "COLUMNS": across}
        first = Launch(
            self.kernel("depthwise_pixels_filter", FILTER, **more),
            (groups * across, parts * lanes, tap_groups),
            (across, lanes, 1),
            (
                *(Buffer("x"), Buffer("dy"), partial, pixel_grid(self.problem), *ints(channels)),
                *(Constant(np.uint32(strips)), Constant(np.uint32(part_strips)), *ints(row_strips)),
                *(divisor_argument(row_strips), divisor_argument(rows)),
            ),
            ("dw",),
        )
        second = Launch(
            self.kernel("depthwise_pixels_sum", SUM),
            (ceil_div(taps * channels, SUMMED) * GROUP,),
            (GROUP,),
            (partial, Buffer("dw"), Accumulate("dw"), *ints(channels, parts)),
            ("dw",),
        )
        return Launches((first, second), parts * taps * channels * size)
