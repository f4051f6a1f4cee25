"""Kernels of one tap on CPU devices, backward filter: a product of matrices of which one is read where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import FILTER_SPLIT, GRID
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu.dense import can_be_dense, collect, collect_cycles, dense_pixels
from clgraft.core.operators.conv.gemm_cpu.partial_sums import splits_cycles, sum_of_partials
from clgraft.core.operators.conv.grid import forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile, lanes_of
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    Local,
    Tickets,
    Workspace,
    ints,
)
from clgraft.core.planning.pairs import NUMBERS, pair_defines
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.tickets import turns
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

FILE = "conv/gemm_cpu/filter_in_place.cl"
COSTS = costs("filter_in_place")
BLOCK = 256  # most operands of a block, whose pixels are the kernel's MOST_PIXELS
LOCAL_BYTES = 448 * 1024  # of a block's transposed pixels: about half of a core's L2 cache
SPARE_BYTES = 512  # of local memory, for how runtimes align it
NEAR_BYTES = 256 * 1024  # of a block's rows that stay in the L2 cache while all tiles of columns are multiplied
FETCHED_BYTES = 64  # of a cache line
MOST_PARTS = 16  # that rows and tiles are cut into, at most
# rows of a register tile by its vectors, with 32 vector registers and with 16
ROWS = ({3: (8,), 2: (13, 12), 1: (16,)}, {3: (4,), 2: (6,), 1: (12,)})


@dataclass(frozen=True)
class Split:
    """How the work is split: blocks of pixels a split; row tiles and column tiles an item; cycles of a thread.

    `turned` says that x is the tensor that is transposed, the columns, and not dy; `in_grid`, that its pixels are
    collected meanwhile, where a stride has them apart.
    """

    turned: bool
    tile: RegisterTile
    block: int
    blocks: int
    splits: int
    row_tiles: int
    tiles: int
    cost: float
    in_grid: bool = False

    @property
    def direct(self) -> bool:
        """Whether nothing is left to be added or transposed when the pixels are summed."""
        return self.turned and self.splits == 1

    def argument(self) -> StructConstant:
        """Return the kernel's FilterSplit."""
        fields = {"block": self.block, "blocks": self.blocks, "rows": self.row_tiles, "tiles": self.tiles}
        return FILTER_SPLIT.pack({"direct": int(self.direct), **fields})


@dataclass(frozen=True)
class _Product:
    """The product without its split: channels and outputs of a group, pixels of all images, pixels of an operand.

    And bytes of a sum and of an operand, and of a pixel in memory; the pixels of a row where those of x are collected
    when they are transposed, else 0.
    """

    channels: int
    outputs: int
    groups: int
    pixels: int
    numbers: int
    size: int
    itemsize: int
    row_pixels: int

    @classmethod
    def of(cls, problem: ConvProblem, numbers: int, in_grid: bool = False) -> _Product:
        groups = problem.groups
        pixels = problem.batch * prod(problem.out_size)
        sizes = arithmetic_bytes(problem.dtype), np.dtype(problem.dtype).itemsize
        channels, outputs = problem.in_channels // groups, problem.out_channels // groups
        return cls(channels, outputs, groups, pixels, numbers, *sizes, problem.out_size[-1] if in_grid else 0)

    @property
    def converts(self) -> bool:
        """Whether a block's rows are converted before they are multiplied."""
        return self.itemsize * self.numbers < self.size

    def column_bytes(self, block: int, tile: RegisterTile) -> int:
        """Return the bytes of a column of transposed operands."""
        return (block // self.numbers + tile.lanes) * self.size

    def converted_bytes(self, block: int, tile: RegisterTile) -> int:
        """Return the bytes of a tile's converted rows."""
        return tile.rows * (block + tile.lanes) * self.size if self.converts else self.size

    def sides(self, turned: bool) -> tuple[int, int]:
        """Return the number of rows and of columns of a group."""
        return (self.outputs, self.channels) if turned else (self.channels, self.outputs)


def is_served(problem: ConvProblem, numbers: int = 1) -> bool:
    """Return whether a problem's pixels lie side by side in x, or can be collected so, in whole operands."""
    if not problem.batch or prod(problem.out_size) % numbers:
        return False
    return forward_grid(problem).plain or can_be_dense(problem)


def tiles(device: DeviceInfo, dtype: str) -> list[RegisterTile]:
    """Return the register tiles."""
    rows = ROWS[0 if has_32_registers(device) else 1]
    return [RegisterTile(r, vectors, lanes_of(device, dtype)) for vectors in rows for r in rows[vectors]]


def _parts(count: int) -> list[int]:
    return sorted({ceil_div(count, n) for n in range(1, min(count, MOST_PARTS) + 1)})


def _splits(work: _Product, tile: RegisterTile, turned: bool, device: DeviceInfo) -> Iterator[Split]:
    """Return every split with the estimated time of its longest thread.

    The estimate is in cycles of a core with two vector FMAs a cycle.
    """
    rows, columns = work.sides(turned)
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    most = BLOCK * work.numbers
    block = min(round_up(ceil_div(work.pixels, ceil_div(work.pixels, most)), tile.lanes * work.numbers), most)
    count, operands = ceil_div(work.pixels, block), block // work.numbers
    threads = device.compute_units
    element = COSTS["pair" if work.numbers > 1 else "lone" if tile.vectors == 1 else "load"]
    step = tile.rows * tile.vectors / COSTS["fmas"] + tile.rows * element + tile.vectors * COSTS["load"]
    convert = COSTS["convert"] if work.converts else 0
    turn = COSTS["gradient"]
    if work.row_pixels:
        turn = COSTS["collect"] * round_up(work.row_pixels, tile.lanes) / work.row_pixels
    local_bytes = min(LOCAL_BYTES, device.local_memory - SPARE_BYTES)
    converted = work.converted_bytes(block, tile)
    launch = device.launch_cost * COSTS["clock"]
    for item_tiles in _parts(column_tiles):
        if item_tiles * tile.columns * work.column_bytes(block, tile) + converted > local_bytes:
            continue
        lanes = round_up(ceil_div(columns, ceil_div(column_tiles, item_tiles)), tile.lanes)
        for item_rows in _parts(row_tiles):
            products = item_rows * item_tiles * (operands * step + tile.rows * tile.vectors * COSTS["sums"])
            rows_bytes = item_rows * tile.rows * block * work.itemsize
            fetched = rows_bytes / FETCHED_BYTES * COSTS["fetch"] * (item_tiles if rows_bytes > NEAR_BYTES else 1)
            converting = block / tile.lanes * item_rows * tile.rows * convert
            turning = operands / tile.lanes * lanes * turn
            of_block = turning + converting + products + fetched + COSTS["block"]
            for blocks in sorted({ceil_div(count, n) for n in range(1, min(count, 256) + 1)}):
                splits = ceil_div(count, blocks)
                items = splits * ceil_div(row_tiles, item_rows) * ceil_div(column_tiles, item_tiles) * work.groups
                item = of_block * blocks + COSTS["item"]
                direct = turned and splits == 1
                per_sum = COSTS["store"] if direct else splits_cycles(splits)
                sums = work.groups * rows * column_tiles * tile.columns * per_sum / threads
                cost = turns(items, threads) * item + sums + (0 if direct else launch)
                in_grid = work.row_pixels > 0
                yield Split(turned, tile, block, blocks, splits, item_rows, item_tiles, cost, in_grid)


def choose(problem: ConvProblem, planner: Planner, chosen: Mapping[str, int], numbers: int = 1) -> Split:
    """Choose the split whose longest thread is estimated shortest, of those that the settings allow.

    Without settings, pixels that lie a stride apart may be collected where they are transposed, as single operands.

    Raises
    ------
    Declined
        If not even one tile of columns fits local memory.
    """
    found = list(_allowed(_Product.of(problem, numbers), planner.device, problem.dtype, chosen))
    grid = forward_grid(problem)
    if not grid.plain:
        collected = collect_cycles(problem, planner)
        found = [replace(split, cost=split.cost + collected) for split in found]
        if grid.one_tap and numbers == 1 and not chosen:
            of_grid = _Product.of(problem, numbers, in_grid=True)
            found += _allowed(of_grid, planner.device, problem.dtype, {"turned": 1})
    best = min(found, key=lambda split: split.cost, default=None)
    if best is None:
        raise Declined(f"a block of pixels does not fit {planner.device.local_memory} bytes of local memory")
    return best


def _allowed(work: _Product, device: DeviceInfo, dtype: str, chosen: Mapping[str, int]) -> Iterator[Split]:
    """Return the splits that settings allow."""
    for tile in tiles(device, dtype):
        for turned in (False, True):
            if chosen.get("vectors", tile.vectors) == tile.vectors and chosen.get("turned", turned) == turned:
                yield from _splits(work, tile, turned, device)


def candidates(problem: ConvProblem, numbers: int = 1) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: ``vectors`` of the register tile, and whether x is ``turned`` instead of dy."""
    if is_served(problem, numbers):
        for vectors in ROWS[0]:
            yield from ({"vectors": vectors, "turned": turned} for turned in (0, 1))


def plan(problem: ConvProblem, planner: Planner, chosen: Mapping[str, int], numbers: int = 1) -> Launches:
    """Plan the collection of strided pixels, the products over splits of the pixels, and their sum in a fixed order.

    Operands have so many `numbers`, pixels of a row.
    """
    if not is_served(problem, numbers):
        raise Declined(f"settings {dict(chosen)} are for kernels of one tap, and whole operands of {numbers} pixels")
    if chosen and (set(chosen) != {"vectors", "turned"} or chosen["vectors"] not in ROWS[0]):
        raise Declined(f"got settings {dict(chosen)}, expected turned and vectors of {(*ROWS[0],)}")
    work, s = _Product.of(problem, numbers), choose(problem, planner, chosen, numbers)
    tile = s.tile
    rows, columns = work.sides(s.turned)
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    layout = WorkspaceLayout()
    launches = []
    x: Buffer | Workspace = Buffer("x")
    grid = forward_grid(problem)
    if not grid.plain and not s.in_grid:
        x = dense_pixels(problem, layout)
        launches.append(collect(problem, planner, x, "dw"))
    partial = layout.take(s.splits * work.groups * column_tiles * tile.columns * rows * work.size, work.size)
    items = s.splits * ceil_div(row_tiles, s.row_tiles) * ceil_div(column_tiles, s.tiles) * work.groups
    defines = {**FILTER_SPLIT.defines(), **tile.defines(), "MOST_PIXELS": BLOCK * numbers}
    defines.update(pair_defines(planner.device) if numbers == NUMBERS else {})
    if s.in_grid:
        defines.update(GRID.defines(), IN_GRID=1, STRIDE=grid.axes[2].stride)
    launches.append(
        Launch(
            planner.kernel(FILE, "filter_in_place", defines, problem.dtype, MAD_ENABLE),
            (min(items, planner.device.compute_units), 1, 1),
            (1, 1, 1),
            (
                *((Buffer("dy"), x) if s.turned else (x, Buffer("dy"))),
                *(partial, Buffer("dw"), Accumulate("dw")),
                *ints(problem.batch, rows, columns, work.groups),
                Constant(np.int64(prod(problem.out_size))),
                s.argument(),
                Tickets(),
                Local(s.tiles * tile.columns * work.column_bytes(s.block, tile)),
                Local(work.converted_bytes(s.block, tile)),
                *((grid.argument(),) if s.in_grid else ()),
            ),
            ("dw",),
        )
    )
    if not s.direct:
        launches.append(sum_of_partials(problem, planner, partial, s.splits, tile, s.turned))
    return Launches(tuple(launches), layout.nbytes)
