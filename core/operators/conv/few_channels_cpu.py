"""Convolution of few channels on CPU devices, the first layer of a net: vectors run along the outputs.

Forward, and the gradient of the weights. A product of matrices over panels of pixels would hold each element of x once
for every tap that meets it, and the first layer of a net has too few outputs to make up for the time that takes. Here
elements are broadcast from where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.channels_last.pixels import choose_tile
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.gemm_cpu.partial_sums import sum_of_partials
from clgraft.core.operators.conv.grid import Grid, spatial_grid
from clgraft.core.operators.conv.past_caches import product_past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.operators.conv.register_tile import RegisterTile
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.pairs import NUMBERS, product_defines
from clgraft.core.planning.tickets import turns
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "few_channels_cpu"
FILE = "conv/few_channels_cpu.cl"
COSTS = costs("few_channels")
MOST_CHANNELS = 4
MOST_OUTPUTS = 64  # forward, with more channels: more outputs make up for the time to fill a panel
MOST_ROWS = 1.15  # rows of register tiles for each pixel
MOST_TAPS = 16  # of a row of the kernel: they are unrolled
MOST_EMPTY = 0.25  # share of a tile's lanes that has no outputs
PARTS = (48, 192)  # pixels whose sums are stored together: of which few are in the first cache, and with several chunks
PACK_RANGE = 512  # rows of the weights' matrix that a work-item packs
LINE_BYTES = 256 * 1024  # of the lines of a block of rows, which stay in a core's own cache
CHUNK_BYTES = 192 * 1024  # and of the weights of a tile of outputs that are multiplied for a part of the pixels
FILTER_FILE = "conv/few_channels_cpu_filter.cl"
FILTER_BYTES = 320 * 1024  # of the lines and of the gradient of a block of rows
REGISTERS = (32, 16)
MOST_VECTORS = 4


@dataclass(frozen=True)
class Lines:
    """A block of `rows` of pixels, its lines of `pitch` elements, and its parts. Cost in cycles of the longest thread.

    Attributes
    ----------
    part, chunk : int
        Pixels of a part, and channels that it is multiplied with at a time.
    """

    rows: int
    part: int
    chunk: int
    pitch: int
    nbytes: int
    cost: float


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan the packing of the weights, and the product; or products over splits of the pixels, and their sum."""
    device = planner.device
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    _expect_served(problem)
    lanes = vector_lanes(device, problem.dtype)
    if problem.direction == "backward_filter":
        return _plan_filter(problem, planner)
    tile = choose_tile(problem.out_channels, has_32_registers(device), lanes)
    columns = round_up(problem.out_channels, tile.columns)
    if columns - problem.out_channels > MOST_EMPTY * columns:
        raise Declined(f"{problem.out_channels} outputs leave too much of {columns} lanes empty")
    grid = spatial_grid(problem)
    paired = product_defines(problem.dtype, device)
    channels = ceil_div(problem.in_channels, NUMBERS) if paired else problem.in_channels  # or pairs of them
    # planes of other sizes do not begin where a vector may be stored past the caches
    past = {} if prod(problem.out_size) % lanes else product_past_caches(planner, problem, lanes)
    kept_parts = 2 if past else 1  # one is stored past the caches while the next one is multiplied
    lines = _choose_lines(grid, problem, planner, tile, channels, kept_parts)
    size, taps = arithmetic_bytes(problem.dtype), prod(problem.kernel)
    depth = channels * taps
    defines = {**GRID.defines(), **tile.defines(), **paired}
    if not has_32_registers(device):  # tiles are small there, and a loop shows
        defines["KW"] = grid.row_taps
    layout = WorkspaceLayout()
    nbytes = columns * depth * size
    weights = layout.take(nbytes, size)
    packing = Launch(
        planner.kernel(FILE, "pack_outputs", defines, problem.dtype, MAD_ENABLE),
        (ceil_div(depth, PACK_RANGE), columns // tile.columns),
        (1, 1),
        (
            *(Buffer("w"), weights, *ints(problem.out_channels, problem.in_channels * taps)),
            *ints(*((taps,) if paired else ()), PACK_RANGE),
        ),
        ("y",),
        (nbytes,),
    )
    items = grid.batch * ceil_div(grid.axes[1].size, lines.rows)
    product = Launch(
        planner.kernel(
            FILE, "conv_few_channels", {**defines, **past, **epilogue_defines(epilogue)}, problem.dtype, MAD_ENABLE
        ),
        (min(items, device.compute_units), 1, 1),
        (1, 1, 1),
        (
            *(Buffer("x"), weights, Buffer("b" if problem.bias else "x"), Buffer("y")),
            *(*ints(problem.bias), Accumulate("y"), *ints(problem.in_channels, problem.out_channels)),
            *(grid.argument(), *ints(lines.rows, lines.pitch, lines.part, lines.chunk), Tickets()),
            *map(Local, (lines.nbytes, *_scratch(tile, lines.part, size, kept_parts))),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        ("y",),
    )
    return Launches((packing, product), layout.nbytes)


def _scratch(tile: RegisterTile, part: int, size: int, kept_parts: int) -> tuple[int, int, int]:
    """Return the bytes of the kernel's places, sums and ends."""
    pixels = max(round_up(part, tile.rows), round_up(part, tile.lanes))
    return (part + tile.rows) * 4, kept_parts * pixels * tile.columns * size, tile.lanes**2 * size


def _expect_served(problem: ConvProblem) -> None:
    if problem.direction not in ("forward", "backward_filter"):
        raise Declined(f"has no {problem.direction}")
    if problem.groups != 1 or problem.ndim > 2:
        raise Declined("serves one or two spatial axes, no groups")
    strided = problem.stride[-1] > 1 and (problem.direction != "forward" or problem.out_channels <= MOST_OUTPUTS)
    if problem.in_channels > MOST_CHANNELS and not strided:
        raise Declined(f"is for up to {MOST_CHANNELS} channels, or a stride and up to {MOST_OUTPUTS} outputs forward")
    if not problem.flops:
        raise Declined("there is nothing to multiply")
    if prod(problem.kernel) == 1 or problem.kernel[-1] > MOST_TAPS:
        raise Declined(f"serves rows of up to {MOST_TAPS} taps, and several taps")
    if problem.dilate[-1] != 1 or min(problem.pad_begin) < 0:
        raise Declined("serves taps that are neighbours in a row, and no negative padding")


def _choose_lines(
    grid: Grid, problem: ConvProblem, planner: Planner, tile: RegisterTile, channels: int, kept_parts: int
) -> Lines:
    """Choose the block of rows whose longest thread is estimated shortest.

    Raises
    ------
    Declined
        If not even the lines of one row of pixels fit local memory, or rows are too few for all cores.
    """
    _, height, width = grid.axes
    units, size = planner.device.compute_units, arithmetic_bytes(problem.dtype)
    if grid.batch * height.size < units:
        raise Declined(f"{grid.batch * height.size} rows of pixels are too few for {units} cores")
    tiles, steps = ceil_div(problem.out_channels, tile.columns), channels * grid.taps
    pitch = round_up((width.size - 1) * width.stride + width.taps, tile.lanes)
    of_channel = grid.taps * tile.columns * size
    chunk = min(max(CHUNK_BYTES // of_channel, 1), channels)
    part = PARTS[0 if chunk == channels else 1]
    most = min(LINE_BYTES, planner.device.local_memory - sum(_scratch(tile, part, size, kept_parts)) - 4 * 128)
    best: Lines | None = None
    share = 0.0  # rows of tiles for each pixel
    for rows in sorted({ceil_div(height.size, n) for n in range(1, height.size + 1)}):
        lines = channels * ((rows - 1) * height.stride + (height.taps - 1) * height.step + 1)
        if lines * pitch * size > most:
            break
        pixels = rows * width.size
        multiplied = pixels // part * round_up(part, tile.rows) + round_up(pixels % part, tile.rows)
        item = (
            lines * pitch / tile.lanes * COSTS["fill"]
            + tiles * tile.vectors * multiplied * steps / COSTS["fmas"]
            + tiles * tile.vectors * round_up(pixels, tile.lanes) * COSTS["store"]
            + COSTS["item"]
        )
        cost = turns(grid.batch * ceil_div(height.size, rows), units) * item
        if best is None or cost < best.cost:
            best = Lines(rows, min(part, pixels), chunk, pitch, lines * pitch * size, cost)
            share = multiplied / pixels
    if best is None:
        raise Declined(f"the lines of a row of pixels do not fit {most} bytes of local memory")
    if share > MOST_ROWS:
        raise Declined(f"tiles of {tile.rows} rows leave too many empty")
    return best


def filter_tile(problem: ConvProblem, planner: Planner) -> tuple[RegisterTile, int]:
    """Return the register tile of the gradient of the weights, and the rows of the kernel whose taps it has.

    Raises
    ------
    Declined
        If the taps of a row do not fit the registers.
    """
    lanes = vector_lanes(planner.device, problem.dtype)
    registers = REGISTERS[0 if has_32_registers(planner.device) else 1]
    row_taps, taps = problem.kernel[-1], prod(problem.kernel[:-1])
    found: dict[tuple[int, int], float] = {}
    for height in range(1, taps + 1):
        for vectors in range(1, MOST_VECTORS + 1):
            rows = height * row_taps
            if rows * vectors + vectors + 1 > registers:
                continue
            tiles = ceil_div(taps, height) * ceil_div(problem.out_channels, vectors * lanes)
            found[height, vectors] = tiles * (rows * vectors + (rows + vectors) * COSTS["load"])
    if not found:
        raise Declined(f"the sums of {row_taps} taps do not fit {registers} registers")
    height, vectors = min(found, key=lambda key: found[key])
    return RegisterTile(height * row_taps, vectors, lanes), height


def _plan_filter(problem: ConvProblem, planner: Planner) -> Launches:
    tile, tile_height = filter_tile(problem, planner)
    grid, size, units = spatial_grid(problem), arithmetic_bytes(problem.dtype), planner.device.compute_units
    _, height, width = grid.axes
    tiles, depth = ceil_div(problem.out_channels, tile.columns), problem.in_channels * grid.taps
    pitch = round_up((width.size - 1) * width.stride + width.taps, tile.lanes)
    most = min(FILTER_BYTES, planner.device.local_memory - 4 * 128)
    found: dict[tuple[int, int], tuple[float, int, int, int]] = {}
    for channels in sorted({ceil_div(problem.in_channels, n) for n in range(1, problem.in_channels + 1)}):
        for rows in sorted({ceil_div(height.size, n) for n in range(1, height.size + 1)}):
            lines = channels * ((rows - 1) * height.stride + (height.taps - 1) * height.step + 1)
            local_lines = lines * pitch * size
            local_gradient = tiles * (rows * width.size + tile.lanes) * tile.columns * size
            if local_lines + local_gradient > most:
                break
            steps = channels * grid.taps
            item = (
                lines * pitch / tile.lanes * COSTS["fill"]
                + tiles * tile.vectors * rows * width.size * (COSTS["transpose"] + steps / COSTS["fmas"])
                + tiles * tile.vectors * steps * COSTS["sums"]
                + COSTS["item"]
            )
            blocks, ranges = grid.batch * ceil_div(height.size, rows), ceil_div(problem.in_channels, channels)
            split_blocks = ceil_div(blocks, min(blocks, ceil_div(ITEMS_PER_UNIT * units, ranges)))
            items = ceil_div(blocks, split_blocks) * ranges
            if items >= units:
                cost = turns(items, units) * split_blocks * item
                found[channels, rows] = cost, split_blocks, local_lines, local_gradient
    if not found:
        raise Declined(f"blocks of rows of {most} bytes of local memory are too few for {units} cores")
    channels, rows = min(found, key=lambda key: found[key])
    _, split_blocks, *local_bytes = found[channels, rows]
    splits = ceil_div(grid.batch * ceil_div(height.size, rows), split_blocks)
    items = splits * ceil_div(problem.in_channels, channels)
    layout = WorkspaceLayout()
    partial = layout.take(splits * tiles * tile.columns * depth * size, size)
    defines = {**GRID.defines(), **tile.defines()}
    products = Launch(
        planner.kernel(
            FILTER_FILE,
            "conv_few_channels_filter",
            {**defines, "KW": grid.row_taps, "HR": tile_height},
            problem.dtype,
            MAD_ENABLE,
        ),
        (min(items, units), 1, 1),
        (1, 1, 1),
        (
            *(Buffer("x"), Buffer("dy"), partial, *ints(problem.in_channels, problem.out_channels)),
            *(grid.argument(), *ints(rows, pitch, split_blocks, channels), Tickets(), *map(Local, local_bytes)),
        ),
        ("dw",),
    )
    total = sum_of_partials(problem, planner, partial, splits, tile)
    return Launches((products, total), layout.nbytes)
