"""Backward data with a stride on CPU devices: products of matrices for all phases of the stride share a panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd, prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, PHASE_TAPS, TAPS
from clgraft.core.operators.conv.gemm_cpu.blocking import COSTS, Blocking, ProductWork, choose_blocking
from clgraft.core.operators.conv.grid import Grid, shared_data_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile, lanes_of
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.pairs import NUMBERS, pair_defines
from clgraft.core.planning.structs import StructConstant
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div, in_3d, round_up

FILE = "conv/gemm_cpu/phases.cl"
STRUCTS = {**GRID.defines(), **PHASE_TAPS.defines(), **TAPS.defines()}
PACK_ELEMENTS = 16384  # elements that a work-item of pack_phases packs
PHASE_INTS = 3  # the kernels' PHASE_FIELDS
# rows of a register tile by its vectors, with 32 vector registers and with 16
ROWS = ({4: 6, 3: 8, 2: 8, 1: 8}, {3: 4, 2: 4, 1: 4})


@dataclass(frozen=True)
class PhaseWork(ProductWork):
    """The products of all phases; parts of their panel are whole channels.

    Attributes
    ----------
    units : int
        Register tiles of a row of phases, for each of its row tiles.
    phase_steps : int
        Taps that all of them multiply with.
    rows_of_phases, phases, strides : int
        Phases of all axes but the last, those of the last, and the sum of all strides.
    reach : int
        Elements from the first tap of a row to the last, if they share rows of the panel, which begin at the first.
    """

    units: int = 1
    phase_steps: int = 1
    rows_of_phases: int = 1
    phases: int = 1
    strides: int = 3
    reach: int = 0

    @property
    def steps(self) -> int:
        return self.phase_steps * self.channels

    @property
    def sums(self) -> int:
        return self.rows_of_phases * self.units

    @property
    def rows(self) -> int:
        return self.channels

    @property
    def row_taps(self) -> int:
        return self.grid.taps

    @property
    def shift(self) -> int:
        return self.reach

    def row_size(self, tile: RegisterTile) -> int:
        if not self.reach:
            return super().row_size(tile)
        return self.grid.source_rows * (tile.columns + round_up(self.reach, tile.lanes))

    @property
    def part_cost(self) -> float:
        return COSTS["phase_part"]

    @property
    def far_bytes(self) -> float:
        return COSTS["phase_far_bytes"]

    def staged(self, tile: RegisterTile) -> int:
        """Elements of the sums of a row of phases."""
        return self.units * tile.rows * tile.columns

    def scratch(self, tile: RegisterTile, tiles: int) -> int:
        return self.staged(tile) + self.phases * tile.columns + PHASE_INTS * self.strides


@dataclass(frozen=True)
class Products:
    """One way to compute all phases; `merged` ones of a row share row tiles, with zeros. Cost in cycles."""

    merged: bool
    tile: RegisterTile
    work: PhaseWork
    blocking: Blocking
    cost: float


def has_phases(problem: ConvProblem) -> bool:
    """Return whether a problem is backward data with a stride."""
    return problem.direction == "backward_data" and any(stride > 1 for stride in problem.stride)


def tiles(problem: ConvProblem, planner: Planner) -> dict[int, RegisterTile]:
    """Return the register tiles by their vectors, the usual one first."""
    lanes = lanes_of(planner.device, problem.dtype)
    rows = ROWS[0 if has_32_registers(planner.device) else 1]
    return {vectors: RegisterTile(rows[vectors], vectors, lanes) for vectors in (3, *rows)}


def work_of(
    problem: ConvProblem, tile: RegisterTile, numbers: int, merged: bool = False, shifted: bool = False
) -> PhaseWork:
    """Describe the products of all phases for the choice of their blocking."""
    grid = shared_data_grid(problem)
    reach = grid.reach if shifted else 0
    last = grid.axes[2]
    grid = replace(grid, axes=(*grid.axes[:2], replace(last, size=last.size + reach)))
    stride, kernel = in_3d(problem.stride, 1), in_3d(problem.kernel, 1)
    outputs = problem.in_channels // problem.groups
    units = ceil_div(stride[2] * outputs, tile.rows) if merged else stride[2]
    return PhaseWork(
        grid,
        m_tiles=1 if merged else ceil_div(outputs, tile.rows),
        channels=problem.out_channels // problem.groups // numbers,
        groups=problem.groups,
        size=arithmetic_bytes(problem.dtype),
        keep=problem.dtype in SMALL,
        units=units,
        phase_steps=kernel[0] * kernel[1] * (units * grid.row_taps if merged else kernel[2]),
        rows_of_phases=stride[0] * stride[1],
        phases=stride[2],
        strides=sum(stride),
        reach=reach,
    )


def products(
    problem: ConvProblem, planner: Planner, vectors: int, merged: bool, shifted: bool = False, numbers: int = 1
) -> Products:
    """Choose the blocking of the products with a register tile of so many vectors.

    Raises
    ------
    Declined
        If not even one channel of a panel fits local memory.
    """
    tile = tiles(problem, planner)[vectors]
    work = work_of(problem, tile, numbers, merged, shifted)
    cost, blocking = choose_blocking(work, tile, planner.device)
    return Products(merged, tile, work, blocking, cost)


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search.

    ``vectors`` of the register tile; whether phases are ``merged``, and rows of the panel ``shifted`` for a row's taps.
    """
    for vectors in tiles(problem, planner):
        yield from ({"vectors": vectors, "merged": merged} for merged in (0, 1))
        yield {"vectors": vectors, "merged": 1, "shifted": 1}


def choose(problem: ConvProblem, planner: Planner, numbers: int = 1) -> Products:
    """Choose the tile and whether phases are merged: where dx has few channels, their rows would be empty otherwise."""
    found = [products(problem, planner, 3, False, numbers=numbers)]
    for vectors in (3, 4):
        if vectors in tiles(problem, planner):
            with suppress(Declined):
                found += [products(problem, planner, vectors, True, shifted, numbers) for shifted in (False, True)]
    return min(found, key=lambda item: item.cost)


def plan(
    problem: ConvProblem,
    planner: Planner,
    chosen: Mapping[str, int],
    numbers: int = 1,
    found: Products | None = None,
    unit: Mapping[str, int] | None = None,
) -> Launches:
    """Plan the packing of the weights, and the products; operands have so many channels.

    The products and the kernels' macros may be those of a matrix unit.
    """
    known = set(chosen) <= {"vectors", "merged", "shifted"} and "vectors" in chosen
    if chosen and (not known or chosen["vectors"] not in tiles(problem, planner)):
        expected = f"merged, shifted and vectors of {(*tiles(problem, planner),)}"
        raise Declined(f"got settings {dict(chosen)}, expected {expected}")
    if chosen:
        ways = (bool(chosen.get("merged")), bool(chosen.get("shifted")))
        found = products(problem, planner, chosen["vectors"], *ways, numbers)
    elif found is None:
        found = choose(problem, planner, numbers)
    work, tile, blocking = found.work, found.tile, found.blocking
    pairs = pair_defines(planner.device) if numbers == NUMBERS else {}
    defines = {**STRUCTS, **tile.defines(), **pairs, **(unit or {})}
    outputs = problem.in_channels // problem.groups
    layout = WorkspaceLayout()
    nbytes = problem.groups * work.m_tiles * work.steps * tile.rows * work.size
    packed = layout.take(nbytes, work.size)
    table = Local(PHASE_INTS * work.strides * 4)
    pack_range = max(PACK_ELEMENTS // (prod(problem.kernel) * tile.rows), 1)
    panel, _, runs, kept = blocking.local_bytes
    packing = Launch(
        planner.kernel(FILE, "pack_phases", defines, problem.dtype, MAD_ENABLE),
        (ceil_div(work.channels, pack_range), work.m_tiles, problem.groups),
        (1, 1, 1),
        (
            *(Buffer("w"), packed),
            *ints(work.channels, outputs, found.merged, work.units, pack_range),
            *(work.grid.argument(), _phase_taps(problem, work.grid)),
            *(table, Local(prod(problem.kernel) * 4)),
        ),
        ("dx",),
    )
    blocks = ceil_div(work.grid.pixels, blocking.tiles * tile.columns)
    items = blocks * ceil_div(work.m_tiles, blocking.row_tiles) * problem.groups
    multiplying = Launch(
        planner.kernel(FILE, "conv_phases", defines, problem.dtype, MAD_ENABLE),
        (min(items, planner.device.compute_units), 1, 1),
        (1, 1, 1),
        (
            *(Buffer("dy"), packed, Buffer("dx"), Accumulate("dx")),
            *ints(work.channels, outputs, problem.groups, found.merged, work.units),
            *(work.grid.argument(), _phase_taps(problem, work.grid)),
            *ints(work.shift, blocking.tiles, blocking.row_tiles, blocking.part),
            Tickets(),
            *map(Local, (panel, work.staged(tile) * work.size, work.phases * tile.columns * work.size, runs)),
            *(table, Local(kept)),
        ),
        ("dx",),
    )
    return Launches((replace(packing, prepares=(nbytes,)), multiplying), layout.nbytes)


def _phase_taps(problem: ConvProblem, grid: Grid) -> StructConstant:
    """Return the kernels' PhaseTaps."""
    stride, dilate = in_3d(problem.stride, 1), in_3d(problem.dilate, 1)
    distance = [s // gcd(s, d) for s, d in zip(stride, dilate)]
    steps = zip(stride, dilate, distance, grid.values("step"))
    return PHASE_TAPS.pack(
        {
            "size": in_3d(problem.in_size, 1),
            "kernel": in_3d(problem.kernel, 1),
            "stride": stride,
            "pad": in_3d(problem.pad_begin, 0),
            "dilate": dilate,
            "distance": distance,
            "tap_step": [d * n // s // step for s, d, n, step in steps],
        }
    )
