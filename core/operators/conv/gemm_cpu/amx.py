"""Convolutions of bfloat16 by AMX, a matrix unit of x86 processors: forward, and backward data of stride 1.

Panels of pixels are those of `cpu_pairs`: a row of 16 pairs is a row of the unit's tiles as it lies. Weights are packed
in tiles of 32 rows (kernels/conv/gemm_cpu/pack_amx.cl).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import WEIGHT_STRIDES
from clgraft.core.operators.conv.gemm_cpu import phases
from clgraft.core.operators.conv.gemm_cpu.blocking import Blocking
from clgraft.core.operators.conv.gemm_cpu.gemm import PACK_ELEMENTS, GemmBuilder, product_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.amx import LANES, ROWS, STEPS, amx_defines
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Constant, Launch, Launches, Workspace, ints
from clgraft.core.planning.pairs import NUMBERS
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, in_3d, round_up

NAME = "cpu_amx"


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan the packing of the weights and the product."""
    device = planner.device
    if not device.is_cpu or not device.has_amx:
        raise Declined("made for CPU devices that multiply tiles of bfloat16")
    if problem.dtype != "bfloat16" or device.vector_width != LANES:
        raise Declined(f"is for bfloat16 and vectors of {LANES}")
    if problem.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {problem.direction}")
    if phases.has_phases(problem):
        raise Declined("is for gradients whose stride has one phase")
    summed = problem.in_channels if problem.direction == "forward" else problem.out_channels
    if summed // problem.groups % NUMBERS:
        raise Declined("is for even numbers of channels")
    builder = AmxBuilder(problem, planner, product_grid(problem), epilogue=epilogue)
    return builder.launches(builder.in_whole_blocks(builder.product().blocking))


class AmxBuilder(GemmBuilder):
    """What the launches of one problem share, with pairs of channels in the place of channels."""

    def __init__(self, problem: ConvProblem, planner: Planner, *rest: Any, **more: Any) -> None:
        super().__init__(problem, planner, *rest, **more)
        self.one_tap = False
        self.channels //= NUMBERS
        self.tile = RegisterTile(ROWS, 1, LANES)
        self.row_tiles = ceil_div(self.outputs, ROWS)
        self.steps = round_up(self.channels * self.grid.taps, STEPS)  # of whole blocks
        self.defines.update(amx_defines(planner.device))

    def in_whole_blocks(self, blocking: Blocking) -> Blocking:
        """Return a blocking whose parts of a panel, but for the last one, are whole blocks of steps."""
        rows, each = self.grid.source_rows * self.channels, STEPS // gcd(STEPS, max(self.grid.row_taps, 1))
        if blocking.part >= rows:
            return blocking
        if blocking.part < each:
            raise Declined(f"{each} rows of a panel do not fit local memory")
        return replace(blocking, part=blocking.part // each * each)

    def _packing(self, layout: WorkspaceLayout) -> tuple[list[Launch], Workspace]:
        problem = self.problem
        nbytes = problem.groups * self.row_tiles * ROWS * self.steps * self.size
        packed, kernel = layout.take(nbytes, self.size), in_3d(problem.kernel, 1)
        if not nbytes:
            return [], packed
        pack_range = round_up(max(PACK_ELEMENTS // (prod(kernel) * ROWS), 1), STEPS)
        launch = Launch(
            self._kernel("pack_amx"),
            (ceil_div(self.channels, pack_range), self.row_tiles, problem.groups),
            (1, 1, 1),
            (
                *(Buffer("w"), packed),
                *ints(self.channels, self.outputs),
                *(Constant(np.int64(v)) for v in (*self.weight_strides, self.group_stride)),
                *(*ints(pack_range), self.grid.taps_argument(kernel)),
            ),
            (self.target,),
            (nbytes,),
        )
        return [launch], packed

    def _strides(self) -> StructConstant:
        tile = self.steps * ROWS
        return WEIGHT_STRIDES.pack({"group": self.row_tiles * tile, "tile": tile, "row": STEPS, "step": ROWS})
