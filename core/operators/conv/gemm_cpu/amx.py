"""Convolutions of bfloat16 by AMX, a matrix unit of x86 processors.

Panels of pixels are those of `cpu_pairs`: a row of 16 pairs is a row of the unit's tiles as it lies. Weights are packed
in tiles of 32 rows (kernels/conv/gemm_cpu/pack_amx.cl). For filters pairs are of pixels, which are rows of tiles as
`backward_filter` has them.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any, TypeVar

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu import backward_filter, phases
from clgraft.core.operators.conv.gemm_cpu.blocking import Blocking, ProductWork, choose_blocking
from clgraft.core.operators.conv.gemm_cpu.gemm import product_grid
from clgraft.core.operators.conv.gemm_cpu.pairs import PairBuilder, expect_even
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.amx import COLUMNS, LANES, ROWS, STEPS, amx_defines
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.epilogue import Epilogue
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Launch, Launches, Workspace
from clgraft.core.planning.pairs import NUMBERS
from clgraft.core.problem import ceil_div, round_up

NAME = "cpu_amx"
COSTS = costs("amx")
Work = TypeVar("Work", bound=ProductWork)
FILTER_BLOCKS = (768, 384, 192, 64)  # most pixels of a panel of filters' gradients
SPARE_BYTES = 512  # of local memory, for how runtimes align it
TILE = RegisterTile(ROWS, COLUMNS // LANES, LANES)


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them, forward."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan the packing of the weights and the product."""
    device = planner.device
    if problem.dtype != "bfloat16" or device.vector_width != LANES:  # first: only then devices find out about the unit
        raise Declined(f"is for bfloat16 and vectors of {LANES}")
    if not device.is_cpu or not device.has_amx:
        raise Declined("made for CPU devices that multiply tiles of bfloat16")
    if problem.direction == "backward_filter":
        return backward_filter.plan(problem, planner, operands=_pixel_operands(device))
    if problem.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {problem.direction}")
    expect_even(problem)
    if phases.has_phases(problem):
        return phases.plan(problem, planner, {}, NUMBERS, _phases(problem, planner), amx_defines(device))
    builder = AmxBuilder(problem, planner, product_grid(problem), None, epilogue)
    return builder.launches(builder.in_whole_blocks(builder.product().blocking))


def _by_unit(work: Work) -> Work:
    """Return a product as the unit computes it: sums of a panel in one part are not kept."""
    return replace(work, keep=False, late=True, fmas=COSTS["fmas"])


def _phases(problem: ConvProblem, planner: Planner) -> phases.Products:
    """Choose the blocking of gradients with a stride: each tap takes whole blocks of steps."""
    work = _by_unit(phases.work_of(problem, TILE, NUMBERS))
    if work.channels % STEPS:
        raise Declined(f"is for gradients of a stride of multiples of {STEPS * NUMBERS} channels")
    cost, blocking = choose_blocking(work, TILE, planner.device)
    if blocking.part < STEPS:
        raise Declined(f"{STEPS} channels of a panel do not fit local memory")
    return phases.Products(False, TILE, work, replace(blocking, part=blocking.part // STEPS * STEPS), cost)


def _pixel_operands(device: DeviceInfo) -> backward_filter.Operands:
    """Return how the unit multiplies pixels of filters' gradients."""
    defines, fmas, sums = amx_defines(device), COSTS["fmas"], COSTS["sums"]
    return backward_filter.Operands(NUMBERS, STEPS, TILE, defines, FILTER_BLOCKS, fmas, sums)


class AmxBuilder(PairBuilder):
    """What the launches of one problem share: the unit's tiles, by the kernel for any taps."""

    def __init__(self, problem: ConvProblem, planner: Planner, *rest: Any) -> None:
        super().__init__(problem, planner, *rest)
        self.one_tap = False
        self.tile = TILE
        self.row_tiles = ceil_div(self.outputs, ROWS)
        self.defines.update(amx_defines(planner.device))

    @property
    def depth(self) -> int:
        """Operands of a row of packed weights: whole blocks of steps."""
        return round_up(super().depth, STEPS)

    def work(self) -> ProductWork:
        """Describe the product for the choice of its blocking."""
        return _by_unit(super().work())

    def in_whole_blocks(self, blocking: Blocking) -> Blocking:
        """Return a blocking whose parts of a panel are whole blocks of steps; the last one is filled with zeros."""
        rows, row_taps = self.grid.source_rows * self.channels, max(self.grid.row_taps, 1)
        each = STEPS // gcd(STEPS, row_taps)
        if blocking.part >= rows:
            panel, *others = blocking.local_bytes
            panel += blocking.tiles * (-rows * row_taps % STEPS) * self.tile.columns * self.size
            if panel + sum(others) + SPARE_BYTES > self.planner.device.local_memory:
                raise Declined("a panel does not fit local memory")
            return replace(blocking, local_bytes=(panel, *others))
        if blocking.part < each:
            raise Declined(f"{each} rows of a panel do not fit local memory")
        return replace(blocking, part=blocking.part // each * each)

    def _pack(self, packed: Workspace) -> Launch:
        return self._pack_by("pack_amx", packed, round_up(self._pack_range, STEPS))
