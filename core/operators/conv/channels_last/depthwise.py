"""Depthwise convolution in channels last on CPU devices, all directions: vectors run along channels, in place."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.channels_last.windows import pixel_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Workspace, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "cpu_channels"
FILE = "conv/channels_last/depthwise.cl"
MOST_ROW_TAPS, MOST_TAPS = 16, 128  # taps of a row, which are unrolled, and all
TOGETHER = {"forward": 4, "backward_data": 4, "backward_filter": 8}  # pixels of a row that are computed at once
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
TURNED_CHANNELS = 128  # of a work-item that transposes weights
ITEM_ELEMENTS = 8192  # fewer are not worth a work-item's start


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan the transposition of the weights and one launch; for their gradient, sums of parts and their sum."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.direction not in TOGETHER:
        raise Declined(f"has no {problem.direction}")
    if not problem.groups == problem.in_channels == problem.out_channels > 1:
        raise Declined("is for one filter for each of several channels")
    if problem.kernel[-1] > MOST_ROW_TAPS or prod(problem.kernel) > MOST_TAPS:
        raise Declined(f"unrolls at most {MOST_ROW_TAPS} taps of a row, and keeps {MOST_TAPS}")
    return getattr(_DepthwiseBuilder(problem, planner, epilogue), problem.direction)()


class _DepthwiseBuilder:
    """What the launches of a problem share."""

    def __init__(self, problem: ConvProblem, planner: Planner, epilogue: Epilogue | None) -> None:
        self.problem, self.planner, self.epilogue = problem, planner, epilogue
        self.size, self.taps = arithmetic_bytes(problem.dtype), prod(problem.kernel)
        # as many lanes as the device has, or channels
        self.lanes = min(vector_lanes(planner.device, problem.dtype), 1 << (problem.groups.bit_length() - 1))
        self.layout = WorkspaceLayout()

    def kernel(self, name: str, stride: int, more: dict[str, Any] | None = None) -> Any:
        defines = {
            **GRID.defines(),
            **(more or {}),
            "VL": self.lanes,
            "KW": self.problem.kernel[-1],
            "SW": stride,
            "DW": self.problem.dilate[-1],
            "TW": TOGETHER[self.problem.direction],
            "ALL_TAPS": self.taps,
        }
        return self.planner.kernel(FILE, name, defines, self.problem.dtype, MAD_ENABLE)

    def rows(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of work-items over the rows of a tensor, and the rows of each."""
        depth, height, width = in_3d(size, 1)
        rows = self.problem.batch * depth * height
        least = ceil_div(ITEM_ELEMENTS, width * self.problem.groups)
        item_rows = max(min(rows, least), ceil_div(rows, self.planner.device.compute_units * ITEMS_PER_UNIT), 1)
        return ceil_div(rows, item_rows), item_rows

    def weights(self, turned: bool, result: str) -> tuple[Workspace, Workspace, Launch]:
        """Return where weights and zeros lie, and the launch that writes them."""
        channels = self.problem.groups
        nbytes, stored = self.taps * channels * self.size, np.dtype(self.problem.dtype).itemsize
        weights = self.layout.take(nbytes, self.size)
        zeros = self.layout.take(channels * stored, stored)
        arguments = (Buffer("w"), weights, zeros, *ints(channels, self.taps, turned, TURNED_CHANNELS))
        prepares = (nbytes, channels * stored)
        items = ceil_div(channels, TURNED_CHANNELS)
        turn = Launch(self.kernel("turn_taps", 1), (items,), (1,), arguments, (result,), prepares)
        return weights, zeros, turn

    def pixels(self, turned: bool) -> Launches:
        """Plan forward, or backward data with stride 1."""
        problem = self.problem
        source, result = ("dy", "dx") if turned else ("x", "y")
        weights, zeros, turn = self.weights(turned, result)
        items, item_rows = self.rows(problem.in_size if turned else problem.out_size)
        launch = Launch(
            self.kernel("depthwise_pixels", problem.stride[-1], epilogue_defines(self.epilogue)),
            (items,),
            (1,),
            (
                *(Buffer(source), weights, zeros, Buffer("b" if problem.bias else "w"), Buffer(result)),
                *(
                    *ints(problem.bias),
                    Accumulate(result),
                    *ints(problem.groups, item_rows),
                    pixel_grid(problem, turned),
                ),
                *epilogue_arguments(self.epilogue, problem.dtype),
            ),
            (result,),
        )
        return Launches((turn, launch), self.layout.nbytes)

    def forward(self) -> Launches:
        return self.pixels(False)

    def backward_data(self) -> Launches:
        problem = self.problem
        if prod(problem.stride) == 1:
            return self.pixels(True)
        weights, _, turn = self.weights(False, "dx")
        items, item_rows = self.rows(problem.in_size)
        arguments = (
            *(Buffer("dy"), weights, Buffer("dx"), Accumulate("dx"), *ints(problem.groups, item_rows)),
            pixel_grid(problem),
        )
        kernel = self.kernel("depthwise_collect", problem.stride[-1])
        return Launches((turn, Launch(kernel, (items,), (1,), arguments, ("dx",))), self.layout.nbytes)

    def backward_filter(self) -> Launches:
        problem, channels = self.problem, self.problem.groups
        if not problem.batch:
            raise Declined("has nothing to add up")
        parts, part_rows = self.rows(problem.out_size)
        partial = self.layout.take(parts * self.taps * round_up(channels, self.lanes) * self.size, self.size)
        stride = problem.stride[-1]
        sums = Launch(
            self.kernel("depthwise_filters", stride),
            (parts,),
            (1,),
            (Buffer("x"), Buffer("dy"), partial, *ints(channels, part_rows), pixel_grid(problem)),
            ("dw",),
        )
        total = Launch(
            self.kernel("add_depthwise_filters", stride),
            (ceil_div(channels, self.lanes),),
            (1,),
            (partial, Buffer("dw"), Accumulate("dw"), *ints(channels, self.taps, parts)),
            ("dw",),
        )
        return Launches((sums, total), self.layout.nbytes)
