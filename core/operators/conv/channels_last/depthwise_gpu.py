"""Depthwise convolution in channels last on GPUs, all directions: a work-item has neighbouring channels."""

from __future__ import annotations

from math import ceil, gcd, prod
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
from clgraft.core.problem import SMALL, ceil_div, in_3d

NAME = "pixels_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "conv/channels_last/depthwise_gpu.cl"
WEIGHTS, PIXELS, SPREAD, FILTER, SUM, BLOCKS = range(6)  # the file's MAKES: what a program holds
GROUP = 128
WIDE = 4  # channels of a work-item
STRIPS = (4, 2, 1)  # pixels of a row that a work-item computes
MOST_SPAN = 12  # columns that these read together
MOST_BLOCK = 9  # phases of a stride, and vectors of dy, that a work-item keeps in registers
MOST_TAPS, MOST_ROW_TAPS = 121, 11  # which are unrolled
MOST_SUMS = 9  # taps whose gradients a work-item keeps in registers
MOST_COLUMNS = 32  # work-items of a work-group along the channels
GROUPS_PER_UNIT = 8  # work-groups that each compute unit gets at most, for the gradient of filters
LEAST_STRIPS = 8  # of a work-item there
SUMMED = 8  # elements of the gradient that a work-group of the last launch adds up, as the kernels have it
LARGEST = 2**31 - 1

# Of kernels that go down the rows
LINES_FILE = "conv/channels_last/depthwise_lines_gpu.cl"
LINES, LINES_FILTER, LINES_BLOCKS = range(3)  # the file's MAKES
LINES_SPAN = 8  # columns of a line that a work-item reads, at most
LINES_TAPS, LINES_SUMS = 9, 10  # taps whose weights, or the sums of whose gradients, it keeps in registers
MANY_ITEMS, FEW_ITEMS = 384, 256  # work-items of a compute unit at the same time
LINES_REGISTERS = 100  # of a work-item's sums, weights and lines, with which many of them share a unit
FILTER_REGISTERS = {MANY_ITEMS: 70, FEW_ITEMS: 120}  # of its sums, gradients and lines, with so many on a unit
FILTER_GROUPS = {MANY_ITEMS: 128, FEW_ITEMS: 256}  # of which work-groups that sum gradients consist
CROWDED = 1.25  # how many times as long each of many takes
MOST_AHEAD, STEPS_AHEAD = 4, 8  # steps read ahead, and steps of a unit for each of these: the first ones are waited for
WHOLE_ROUNDS = 3  # rounds of work-items that run at the same time, below which the last one counts as a whole one
LEAST_COLUMNS = 32  # vectors of channels whose reads lie side by side
LINES_START = 4  # of a unit, in rows: until its first numbers are there
LINES_STEP = 1  # of a step, in vectors that are read: what else it takes


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
        go = self.lines if self.goes_down(LINES_TAPS) else self.pixels
        return go("x", "y", turned=False)

    def goes_down(self, most_taps: int) -> bool:
        """Return whether the kernels that go down the rows serve a problem: in 16 bits, and not too many taps."""
        problem = self.problem
        sizes = (*problem.in_size, *problem.out_size)
        return (
            problem.dtype in SMALL and self.kh * self.kw <= most_taps and self.line_strips(8) != [] and min(sizes) > 0
        )

    def line_strips(self, columns: int) -> list[int]:
        """Return how many columns of y a work-item may go down; none if a single one meets too many of x."""
        return [strip for strip in STRIPS if self.line_span(strip) <= LINES_SPAN and (strip == 1 or strip <= columns)]

    def line_span(self, strip: int) -> int:
        """Return the columns of x that so many columns of y meet."""
        return (strip - 1) * self.sw + (self.kw - 1) * self.dw + 1

    @property
    def new_lines(self) -> int:
        """The lines of x that a step reads."""
        return self.sh // gcd(self.sh, self.dh)

    @property
    def raws(self) -> int:
        """The registers of a vector as memory has it."""
        return ceil_div(self.wide, 2)

    def line_reads(self, strip: int) -> int:
        """Return the vectors of x that a step reads."""
        return self.new_lines * self.line_span(strip)

    def line_kernel(self, name: str, makes: int, strip: int, **more: Any) -> Any:
        """Return a kernel that goes down the rows of strips of so many columns."""
        sizes = {"KH": self.kh, "KW": self.kw, "SH": self.sh, "SW": self.sw, "DH": self.dh, "DW": self.dw}
        defines = {**GRID.defines(), **sizes, "MAKES": makes, "WIDE": self.wide, "STRIP": strip, **more}
        defines = {"ROW_STEP": self.dh // gcd(self.sh, self.dh), "NEW": self.new_lines, **defines}
        return self.planner.kernel(LINES_FILE, name, defines, self.problem.dtype, MAD_ENABLE)

    def chunked(self, rows: int, chunks: int) -> tuple[int, int]:
        """Return the chunks of an image's rows, about so many, and the rows of each, which lie a step apart."""
        row_step = self.dh // gcd(self.sh, self.dh)
        each = ceil_div(rows, row_step)
        steps = ceil_div(each, max(1, min(each, chunks // row_step)))
        return ceil_div(each, steps) * row_step, steps

    def lines(self, source: str, target: str, turned: bool) -> Launches:
        """Return the launch that takes the taps of each pixel, from row to row."""
        problem = self.problem
        _, rows, columns = in_3d(problem.in_size if turned else problem.out_size, 1)
        at_once = self.planner.device.compute_units * MANY_ITEMS

        def split(strip: int, wanted: int) -> tuple[float, int, int, int]:
            chunks, steps = self.chunked(rows, wanted)
            rounds = problem.batch * ceil_div(columns, strip) * self.blocks * chunks / at_once
            rounds = max(1.0, ceil(rounds) if rounds < WHOLE_ROUNDS else rounds)
            step = self.line_reads(strip) + LINES_STEP
            return rounds * (steps + self.kh + LINES_START) * step, strip, chunks, steps

        _, strip, chunks, steps = min(
            split(strip, wanted) for strip in self.line_strips(columns) for wanted in range(1, rows + 1)
        )
        strips = ceil_div(columns, strip)
        items = problem.batch * strips * self.blocks * chunks
        held = ceil_div(self.kh, self.new_lines)
        free = LINES_REGISTERS - self.wide * (held * strip + self.kh * self.kw)
        ahead = _ahead(free, self.line_reads(strip) * self.raws, steps)
        more = {"GROUP": GROUP, "AHEAD": ahead, "FLIP": int(turned)}
        kernel = self.line_kernel("depthwise_lines", LINES, strip, **more, **epilogue_defines(self.epilogue))
        arguments = (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target), pixel_grid(problem, turned)),
            *(Constant(np.uint32(items)), *ints(self.blocks, strips, chunks, steps)),
            *(divisor_argument(size) for size in (self.blocks, strips, chunks)),
            *epilogue_arguments(self.epilogue, problem.dtype),
        )
        return Launches((Launch(kernel, (ceil_div(items, GROUP) * GROUP,), (GROUP,), arguments, (target,)),))

    def lines_filter(self) -> Launches:
        """Return the launches of a filter's gradient by work-items that go down the rows, and their sum."""
        problem, channels, taps = self.problem, self.problem.groups, self.kh * self.kw
        _, rows, columns = in_3d(problem.out_size, 1)
        tap_rows = min(self.kh, max(1, LINES_SUMS // self.kw))
        tap_groups = ceil_div(self.kh, tap_rows)
        units = self.planner.device.compute_units

        def registers(strip: int) -> tuple[int, int]:
            """Return those of sums and of gradients that are kept, and those of a step's reads."""
            kept = ceil_div(tap_rows, self.new_lines) * strip * self.raws
            return self.wide * tap_rows * self.kw + kept, (self.line_reads(strip) + strip) * self.raws

        def split(strip: int, wanted: int) -> tuple[float, int, int, int, int, int, int]:
            items = MANY_ITEMS if sum(registers(strip)) <= FILTER_REGISTERS[MANY_ITEMS] else FEW_ITEMS
            across = _across(self.blocks, FILTER_GROUPS[items])
            lanes, groups = FILTER_GROUPS[items] // across, ceil_div(self.blocks, across)
            most = max(1, units * items // FILTER_GROUPS[items] // (groups * tap_groups))  # parts at the same time
            chunks, steps = self.chunked(rows, wanted)
            count = problem.batch * chunks * ceil_div(columns, strip)
            each = ceil_div(count, min(most * lanes, count))  # units of a work-item
            step = (self.line_reads(strip) + strip + LINES_STEP) * (CROWDED if items == MANY_ITEMS else 1)
            return each * (steps + tap_rows + LINES_START) * step, strip, items, chunks, steps, count, each

        _, strip, items, chunks, steps, count, each = min(
            split(strip, wanted) for strip in self.line_strips(columns) for wanted in range(1, rows + 1)
        )
        group = FILTER_GROUPS[items]
        across = _across(self.blocks, group)
        strips, groups, part_units = ceil_div(columns, strip), ceil_div(self.blocks, across), each * (group // across)
        parts = ceil_div(count, part_units)
        size = arithmetic_bytes(problem.dtype)
        partial = Workspace(0, size)
        kept, read = registers(strip)
        more = {"TAP_ROWS": tap_rows, "COLUMNS": across, "GROUP": group}
        more["AHEAD"] = _ahead(FILTER_REGISTERS[items] - kept, read, steps)
        first = Launch(
            self.line_kernel("depthwise_lines_filter", LINES_FILTER, strip, **more),
            (groups * group, parts, tap_groups),
            (group, 1, 1),
            (
                *(Buffer("x"), Buffer("dy"), partial, pixel_grid(problem), *ints(channels)),
                *(Constant(np.uint32(count)), Constant(np.uint32(part_units)), *ints(strips, chunks, steps)),
                *(divisor_argument(strips), divisor_argument(chunks)),
            ),
            ("dw",),
        )
        return Launches((first, self.sum_of(partial, parts)), parts * taps * channels * size)

    def sum_of(self, partial: Workspace, parts: int) -> Launch:
        """Return the launch that adds the parts of a filter's gradient."""
        channels = self.problem.groups
        return Launch(
            self.kernel("depthwise_pixels_sum", SUM),
            (ceil_div(self.kh * self.kw * channels, SUMMED) * GROUP,),
            (GROUP,),
            (partial, Buffer("dw"), Accumulate("dw"), *ints(channels, parts)),
            ("dw",),
        )

    def backward_data(self) -> Launches:
        if self.sh == self.sw == 1:
            go = self.lines if self.goes_down(LINES_TAPS) else self.pixels
            return go("dy", "dx", turned=True)
        problem = self.problem
        met = self.met(self.kh, self.dh, self.sh), self.met(self.kw, self.dw, self.sw)
        together = max(self.sh * self.sw, prod(met)) <= MOST_BLOCK and min(*problem.in_size, *problem.out_size) > 0
        if together and problem.dtype in SMALL and self.kh * self.kw <= LINES_TAPS and met[1] <= LINES_SPAN:
            return self.lines_blocks(*met)
        _, rows, columns = self.block_sizes() if together else in_3d(problem.in_size, 1)
        places, items = self.places(pixel_grid(problem), rows, columns)
        name, makes = ("depthwise_pixels_blocks", BLOCKS) if together else ("depthwise_pixels_spread", SPREAD)
        kernel = self.kernel(name, makes, SH=self.sh, SW=self.sw)
        weights, first = self.weights("dx", False)
        arguments = (Buffer("dy"), weights, Buffer("dx"), Accumulate("dx"), *places)
        rest = Launch(kernel, (ceil_div(items, GROUP) * GROUP,), (GROUP,), arguments, ("dx",))
        return Launches((first, rest), first.prepares[0])

    @staticmethod
    def met(taps: int, dilate: int, stride: int) -> int:
        """Return how many pixels of dy next to each other a block of phases meets, on an axis."""
        return (taps - 1) * dilate // stride + 1

    def block_sizes(self) -> tuple[int, ...]:
        """Return the blocks of phases on each axis of an image."""
        problem = self.problem
        axes = zip(in_3d(problem.in_size, 1), in_3d(problem.pad_begin, 0), in_3d(problem.stride, 1))
        return tuple((size - 1 + pad) // stride - pad // stride + 1 for size, pad, stride in axes)

    def lines_blocks(self, held: int, span: int) -> Launches:
        """Return the launch that goes down the rows of blocks of phases, which meet so many lines and columns of dy."""
        problem = self.problem
        _, rows, columns = self.block_sizes()
        at_once = self.planner.device.compute_units * MANY_ITEMS

        def split(wanted: int) -> tuple[float, int, int]:
            steps = ceil_div(rows, wanted)
            chunks = ceil_div(rows, steps)
            rounds = problem.batch * columns * self.blocks * chunks / at_once
            rounds = max(1.0, ceil(rounds) if rounds < WHOLE_ROUNDS else rounds)
            return rounds * (steps + held - 1 + LINES_START), chunks, steps

        _, chunks, steps = min(split(wanted) for wanted in range(1, rows + 1))
        items = problem.batch * columns * self.blocks * chunks
        free = LINES_REGISTERS - self.wide * (held * span + self.kh * self.kw)
        ahead = _ahead(free, span * self.raws, steps)
        more = {"GROUP": GROUP, "AHEAD": ahead, "ROW_STEP": 1, "NEW": 1}
        arguments = (
            *(Buffer("dy"), Buffer("w"), Buffer("dx"), Accumulate("dx"), pixel_grid(problem)),
            *(Constant(np.uint32(items)), *ints(self.blocks, columns, chunks, steps)),
            *(divisor_argument(size) for size in (self.blocks, columns, chunks)),
        )
        kernel = self.line_kernel("depthwise_lines_blocks", LINES_BLOCKS, 1, **more)
        return Launches((Launch(kernel, (ceil_div(items, GROUP) * GROUP,), (GROUP,), arguments, ("dx",)),))

    def backward_filter(self) -> Launches:
        if self.goes_down(MOST_TAPS):
            return self.lines_filter()
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
        return Launches((first, self.sum_of(partial, parts)), parts * taps * channels * size)


def _across(blocks: int, items: int) -> int:
    """Return the vectors of channels of so many work-items: enough side by side, and fewest without work."""
    least = min(blocks, LEAST_COLUMNS)
    found = {ceil_div(blocks, count) for count in range(1, blocks + 1)}
    fitting = sorted(across for across in found if least <= across <= items)

    def idle(across: int) -> float:
        return ceil_div(blocks, across) * across / blocks * items / (items // across * across)

    return min(fitting, key=lambda across: (round(idle(across), 2), across))


def _ahead(free: int, read: int, steps: int) -> int:
    """Return the steps that are read ahead into free registers, of which each needs some, where a unit has so many."""
    return max(1, min(MOST_AHEAD, free // read, steps // STEPS_AHEAD))
