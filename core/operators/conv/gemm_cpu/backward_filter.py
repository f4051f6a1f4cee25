"""Convolution on CPU devices, backward filter: a product of matrices whose summed axis is the pixels of all images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu import filter_in_place
from clgraft.core.operators.conv.gemm_cpu.blocking import RUN_INTS
from clgraft.core.operators.conv.gemm_cpu.partial_sums import splits_cycles, sum_of_partials
from clgraft.core.operators.conv.grid import Grid, forward_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile, lanes_of
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers
from clgraft.core.planning.launches import Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.pairs import NUMBERS, pair_defines
from clgraft.core.planning.tickets import turns
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

FILE = "conv/gemm_cpu/backward_filter.cl"
COSTS = costs("filter")
BLOCKS = (192, 64)  # most pixels of a panel; the second where local memory is scarce
LOCAL_BYTES = 640 * 1024
VECTORS = (3, 2, 1)  # vectors of the register tile
MOST = 32  # most settings that a search tries: the best by their estimates


@dataclass(frozen=True)
class Operands:
    """What is multiplied: pixels of an operand, and operands of a row that are multiplied together.

    With them come the register tile and the kernel's macros, if those are given, most pixels of a panel, and the costs
    of multiply-adds and of sums.
    """

    numbers: int = 1
    steps: int = 1
    tile: RegisterTile | None = None
    defines: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[int, ...] = BLOCKS
    fmas: float = COSTS["fmas"]
    sums: float = COSTS["sums"]

    @property
    def pixels(self) -> int:
        """Pixels that are multiplied together."""
        return self.numbers * self.steps


SINGLE = Operands()


def pairs_of(device: DeviceInfo) -> Operands:
    """Return operands of two pixels."""
    return Operands(NUMBERS, defines=pair_defines(device))


def filter_tile(planner: Planner, dtype: str, out_channels: int, vectors: int = 0) -> RegisterTile:
    """Return the tile that wastes least on the out channels, or the one of so many vectors."""
    lanes = lanes_of(planner.device, dtype)
    rows = {3: 8, 2: 12, 1: 16} if has_32_registers(planner.device) else {3: 4, 2: 6, 1: 12}
    vectors = vectors or min(VECTORS, key=lambda v: (ceil_div(out_channels, v * lanes) * v, v == 3, -v))
    return RegisterTile(rows[vectors], vectors, lanes)


@dataclass(frozen=True)
class PixelSplit:
    """How the work is split: blocks of pixels a split, source rows and out channel tiles an item; rows of a panel."""

    pitch: int
    block: int
    blocks: int
    splits: int
    rows: int
    tiles: int
    part: int
    panel_bytes: int
    gradient_bytes: int
    run_bytes: int


def _splits(
    grid: Grid,
    tile: RegisterTile,
    channels: int,
    out_tiles: int,
    size: int,
    local_memory: int,
    most_pixels: int,
    operands: Operands = SINGLE,
) -> Iterator[PixelSplit]:
    source_rows = grid.source_rows * channels
    count = ceil_div(grid.pixels, most_pixels)
    block = round_up(ceil_div(grid.pixels, count), operands.pixels)
    run_bytes = grid.most_runs(block) * RUN_INTS * 4
    pitch = most_pixels + max(tile.lanes, operands.pixels)
    for tiles in sorted({ceil_div(out_tiles, n) for n in range(1, out_tiles + 1)}):
        gradient = tiles * (block + operands.numbers * tile.lanes) * tile.columns * size
        rest = gradient + run_bytes + 4 * 128
        panel_rows = (min(LOCAL_BYTES, local_memory) - rest) // (pitch * size) - tile.rows
        most = panel_rows // grid.row_taps
        if most < 1:
            continue
        for rows in sorted({ceil_div(source_rows, n) for n in range(1, min(source_rows, 256) + 1)}):
            part = ceil_div(rows, ceil_div(rows, most))
            while part < min(rows, most) and part * grid.row_taps % tile.rows:
                part += 1
            panel = (part * grid.row_taps + tile.rows) * pitch * size
            for blocks in sorted({ceil_div(count, n) for n in range(1, min(count, 256) + 1)}):
                splits = ceil_div(count, blocks)
                yield PixelSplit(pitch, block, blocks, splits, rows, tiles, part, panel, gradient, run_bytes)


def splits_by_cost(
    grid: Grid,
    tile: RegisterTile,
    channels: int,
    out_tiles: int,
    groups: int,
    size: int,
    device: DeviceInfo,
    operands: Operands = SINGLE,
) -> Iterator[tuple[float, int, PixelSplit]]:
    """Return every split with the estimated time of its longest thread and the most pixels that its panel may have.

    The estimate is in cycles of a core with two vector FMAs a cycle.
    """
    source_rows, taps = grid.source_rows * channels, grid.row_taps
    for most in operands.blocks:
        for s in _splits(grid, tile, channels, out_tiles, size, device.local_memory, most, operands):
            row_items, out_items = ceil_div(source_rows, s.rows), ceil_div(out_tiles, s.tiles)
            items = s.splits * row_items * out_items * groups
            tail = round_up(s.part * taps, tile.rows) / (s.part * taps)
            tiles = s.rows * taps * tail / tile.rows * s.tiles
            vectors = tile.rows * tile.vectors
            of_block = (
                s.block / tile.lanes * (s.rows * taps * COSTS["fill"] + s.tiles * tile.columns * COSTS["gradient"])
                + tiles * vectors * (s.block / operands.numbers / operands.fmas + operands.sums)
                + COSTS["block"]
            )
            item = of_block * s.blocks + COSTS["item"]
            threads = device.compute_units
            sums = groups * source_rows * taps * out_tiles * tile.columns * splits_cycles(s.splits) / threads
            yield turns(items, threads) * item + sums, most, s


def choose_split(
    grid: Grid,
    tile: RegisterTile,
    channels: int,
    out_tiles: int,
    groups: int,
    size: int,
    device: DeviceInfo,
    operands: Operands = SINGLE,
) -> PixelSplit:
    """Choose the split whose longest thread is estimated shortest.

    Raises
    ------
    Declined
        If not even one source row of a panel fits local memory.
    """
    best: tuple[float, int, PixelSplit] | None = None
    for entry in splits_by_cost(grid, tile, channels, out_tiles, groups, size, device, operands):
        if best is None or entry[0] < best[0]:
            best = entry
    if best is None:
        raise Declined(f"a row of {grid.row_taps} taps does not fit {device.local_memory} bytes of local memory")
    return best[2]


def candidates(
    problem: ConvProblem, planner: Planner, operands: Operands = SINGLE
) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then those with the least estimated times.

    ``vectors`` of the register tile, most ``pixels`` of a panel, ``rows`` of source and ``tiles`` of out channels of a
    work-item, and ``blocks`` of pixels that it sums; of those that differ in the number of parts only the best.
    """
    yield {}
    yield from filter_in_place.candidates(problem, operands.numbers)
    grid, groups = forward_grid(problem), problem.groups
    channels, out_count = problem.in_channels // groups, problem.out_channels // groups
    listed = []
    if not grid.pixels:
        return
    for vectors in VECTORS:
        tile = filter_tile(planner, problem.dtype, out_count, vectors)
        best: dict[tuple[int, int, int], tuple[float, PixelSplit]] = {}
        out_tiles = ceil_div(out_count, tile.columns)
        size = arithmetic_bytes(problem.dtype) // operands.numbers
        for cost, most, s in splits_by_cost(grid, tile, channels, out_tiles, groups, size, planner.device, operands):
            key = most, s.tiles, s.splits
            if key not in best or cost < best[key][0]:
                best[key] = cost, s
        listed += [(cost, vectors, key[0], s.rows, s.tiles, s.blocks) for key, (cost, s) in best.items()]
    listed = [
        entry for entry in listed if entry[2] == max(entry[2] for entry in listed)
    ]  # where pixels are few, another limit only means another program
    for _, vectors, most, rows, tiles, blocks in sorted(listed)[:MOST]:
        yield {"vectors": vectors, "pixels": most, "rows": rows, "tiles": tiles, "blocks": blocks}


def _given_split(
    chosen: Mapping[str, int],
    grid: Grid,
    tile: RegisterTile,
    channels: int,
    out_tiles: int,
    size: int,
    device: DeviceInfo,
    operands: Operands = SINGLE,
) -> PixelSplit:
    """Return the split that settings name."""
    if set(chosen) == {"vectors", "pixels", "rows", "tiles", "blocks"} and chosen["pixels"] in BLOCKS:
        for s in _splits(grid, tile, channels, out_tiles, size, device.local_memory, chosen["pixels"], operands):
            if all(getattr(s, name) == chosen[name] for name in ("rows", "tiles", "blocks")):
                return s
    raise Declined(f"settings {dict(chosen)} are no split that fits local memory")


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    operands: Operands = SINGLE,
) -> Launches:
    """Plan the products over splits of the pixels, and their sum in a fixed order."""
    chosen = {name: int(value) for name, value in (settings or {}).items()}
    if "turned" in chosen:
        return filter_in_place.plan(problem, planner, chosen, operands.numbers)
    if not chosen and not operands.tile and filter_in_place.is_served(problem, operands.numbers):
        with suppress(Declined):
            return filter_in_place.plan(problem, planner, {}, operands.numbers)
    if chosen and chosen.get("vectors") not in VECTORS:
        raise Declined(f"got settings {chosen}, expected vectors of {VECTORS}, pixels, rows, tiles and blocks")
    grid = forward_grid(problem)
    groups = problem.groups
    channels, out_count = problem.in_channels // groups, problem.out_channels // groups
    tile = operands.tile or filter_tile(planner, problem.dtype, out_count, chosen.get("vectors", 0))
    size = arithmetic_bytes(problem.dtype) // operands.numbers  # of a pixel in local memory
    out_tiles = ceil_div(out_count, tile.columns)
    depth = grid.taps * channels
    defines = {**GRID.defines(), **tile.defines(), **operands.defines}
    s = None
    if grid.pixels:
        if chosen:
            s = _given_split(chosen, grid, tile, channels, out_tiles, size, planner.device, operands)
        else:
            s = choose_split(grid, tile, channels, out_tiles, groups, size, planner.device, operands)
        defines["PITCH"] = s.pitch
    splits = s.splits if s else 0
    layout = WorkspaceLayout()
    sum_size = arithmetic_bytes(problem.dtype)
    workers = planner.device.compute_units
    spare = workers * tile.rows if operands.tile else 0  # rows of sums that are not all stored
    rows = splits * groups * out_tiles * depth + spare
    partial = layout.take(rows * tile.columns * sum_size, sum_size)
    launches = []
    if s:
        items = splits * ceil_div(grid.source_rows * channels, s.rows) * groups * ceil_div(out_tiles, s.tiles)
        launches.append(
            Launch(
                planner.kernel(FILE, "conv_filter", defines, problem.dtype, MAD_ENABLE),
                (min(items, workers), 1, 1),
                (1, 1, 1),
                (
                    *(Buffer("x"), Buffer("dy"), partial),
                    *ints(channels, out_count, groups),
                    grid.argument(),
                    *ints(s.block, s.blocks, s.rows, s.tiles, s.part),
                    Tickets(),
                    *map(Local, (s.panel_bytes, s.gradient_bytes, s.run_bytes)),
                ),
                ("dw",),
            )
        )
    launches.append(sum_of_partials(problem, planner, partial, splits, tile))
    return Launches(tuple(launches), layout.nbytes)
