"""Both layers in one launch on CPU devices: the depthwise values of a block of pixels are the product's panel.

Each value is computed once, by the work-item that multiplies it with all rows of weights, and never leaves its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.cpu_costs import costs
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, axes_of, grid_argument
from clgraft.core.operators.conv.gemm_cpu.gemm import VECTORS, forward_cycles, product_tile
from clgraft.core.operators.conv.past_caches import product_past_caches
from clgraft.core.operators.conv.register_tile import RegisterTile, lanes_of
from clgraft.core.operators.separable.problem import PREFIX, SeparableProblem, conv_of
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.tickets import turns
from clgraft.core.problem import SMALL, ceil_div, round_up

NAME = "in_kernel"
FILE = "separable/cpu.cl"
MOST_TAPS = 25  # that are unrolled
MOST_PIXELS = 2**30  # of a plane, which are counted in 32 bits
ROWS = (4, 5, 6)  # rows of results that share their loads
MOST_TILES = 8  # of a block
TILE_BYTES = 16 * 1024  # bytes of local memory for all but the panel, at least
RESERVED = 1024  # bytes of local memory that drivers keep
CACHE_LINE = 64
PANEL_BYTES = 640 * 1024  # most bytes of a panel, which has to stay in a core's L2 cache
LINES_BYTES = 16 * 1024  # of the lines of x of channels that are summed together, which have to stay in the L1 cache
COSTS = costs("separable")


def candidates(problem: SeparableProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then ``vectors`` of a tile and ``tiles`` of a block."""
    yield {}
    for vectors in VECTORS:
        for tiles in range(1, MOST_TILES + 1):
            yield {"vectors": vectors, "tiles": tiles}


@dataclass(frozen=True)
class SeparableWork:
    """What a split into blocks depends on."""

    batch: int
    channels: int
    outputs: int
    height: PlaneAxis
    width: PlaneAxis
    size: int
    lanes: int

    @property
    def pixels(self) -> int:
        """Pixels of all images."""
        return self.batch * self.height.size * self.width.size

    def rows(self, pixels: int) -> int:
        """Return the rows of results that share their loads in a block: the last of them overlap those before."""
        if self.height.step > 1:
            return 1
        lines = min(self.height.size, ceil_div(pixels, max(self.width.size, 1)))
        return min(ROWS, key=lambda rows: (ceil_div(lines, rows) * (rows + 3), rows))


def plan(problem: SeparableProblem, planner: Planner, settings: Mapping[str, int | str] | None = None) -> Launches:
    """Plan one launch for both layers."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    if problem.dtype in SMALL:
        raise Declined("in float16 the values between the layers are rounded")
    first, second = conv_of(problem.depthwise), conv_of(problem.product)
    height, width = axes_of(first)
    strides = (height.stride, width.stride)
    if height.taps * width.taps > MOST_TAPS:
        raise Declined(f"{height.taps * width.taps} taps are too many to unroll")
    if max(strides) > 2 or (max(strides) == 2 and max(height.step, width.step) > 1):
        raise Declined("serves strides of 1, or of 2 without dilation")
    if max(height.source * width.source, height.size * width.size) > MOST_PIXELS:
        raise Declined(f"serves planes of up to {MOST_PIXELS} pixels")
    size, lanes = arithmetic_bytes(problem.dtype), lanes_of(planner.device, problem.dtype)
    work = SeparableWork(first.batch, first.in_channels, second.out_channels, height, width, size, lanes)
    if settings:
        chosen = {name: int(value) for name, value in settings.items()}
        good = set(chosen) == {"vectors", "tiles"} and chosen["vectors"] in VECTORS
        if not good or not 1 <= chosen["tiles"] <= MOST_TILES:
            raise Declined(f"got settings {chosen}, expected vectors of {VECTORS} and tiles up to {MOST_TILES}")
        tile, tiles = product_tile(planner, problem.dtype, chosen["vectors"]), chosen["tiles"]
    else:
        tile, tiles = _split(work, problem, planner)
    lead, pitch = _panel(work, tile, tiles)
    lines = tiles * tile.columns // max(width.size, 1) * height.stride + height.taps
    together = max(min(LINES_BYTES // max(lines * width.source * work.size, 1), work.channels), 1)
    local = (pitch * work.channels * work.size, tile.rows * tile.columns * work.size)
    if sum(local) + RESERVED > planner.device.local_memory:
        raise Declined(f"{sum(local)} bytes do not fit {planner.device.local_memory} bytes of local memory")
    items = ceil_div(work.pixels, tiles * tile.columns)
    defines = {
        **{**tile.defines(), **GRID.defines(), "R": work.rows(tiles * tile.columns)},
        **{"KH": height.taps, "KW": width.taps, "SH": height.stride, "SW": width.stride, "DW": width.step},
        **product_past_caches(planner, second, tile.columns),
        **_prologue_defines(problem.prologue),
        **epilogue_defines(problem.epilogue),
    }
    launch = Launch(
        planner.kernel(FILE, "separable", defines, problem.dtype, MAD_ENABLE),
        (min(items, planner.device.compute_units), 1, 1),
        (1, 1, 1),
        (
            *(Buffer("x"), Buffer(f"{PREFIX}w"), Buffer(f"{PREFIX}b" if first.bias else "x")),  # no bias: never read
            *(Buffer("w"), Buffer("b" if second.bias else "x"), Buffer("y")),
            *(*ints(first.bias, second.bias), Accumulate("y"), *ints(work.channels, work.outputs)),
            *(grid_argument(first.batch, height, width), *ints(tiles, together, lead, pitch)),
            *(Tickets(), *map(Local, local)),
            *(
                replace(item, name=PREFIX + item.name) if isinstance(item, Buffer) else item
                for item in epilogue_arguments(problem.prologue, problem.dtype)
            ),
            *epilogue_arguments(problem.epilogue, problem.dtype),
        ),
        ("y",),
    )
    return Launches((launch,))


def _panel(work: SeparableWork, tile: RegisterTile, tiles: int) -> tuple[int, int]:
    """Return the elements in front of a panel's first pixel, and those of a channel: whole cache lines, and odd ones.

    Rows of results are stored whole: up to one row lies in front, and up to one row and a vector after the last pixel.
    """
    line = CACHE_LINE // work.size
    lead = round_up(work.width.size, line)
    lines = ceil_div(lead + tiles * tile.columns + work.width.size + tile.lanes, line)
    return lead, (lines | 1) * line


def _prologue_defines(prologue: Epilogue | None) -> dict[str, str]:
    if prologue is None:
        return {}
    return {
        "PROLOGUE": prologue.text,
        "PROLOGUE_EXTRAS(F)": " ".join(f"F({i})" for i in range(1, len(prologue.extras) + 1)),
        "PROLOGUE_SCALARS(F)": " ".join(f"F({name})" for name in prologue.scalars),
    }


def _split(work: SeparableWork, problem: SeparableProblem, planner: Planner) -> tuple[RegisterTile, int]:
    """Choose the tile and the tiles of a block whose longest thread is estimated shortest.

    Raises
    ------
    Declined
        If that takes longer than the two layers.
    """
    device = planner.device
    most = min(PANEL_BYTES, device.local_memory - TILE_BYTES)
    found = []
    for vectors in VECTORS:
        tile = product_tile(planner, problem.dtype, vectors)
        for tiles in range(1, MOST_TILES + 1):
            if tiles == 1 or _panel(work, tile, tiles)[1] * work.channels * work.size <= most:
                found.append((_cycles(work, tile, tiles, device.compute_units), -vectors, tiles, tile))
    cycles, _, tiles, tile = min(found, key=lambda entry: entry[:3])
    alone = _cycles_of_layers(work, problem, planner)
    if cycles > alone:
        raise Declined(f"takes {cycles / 1e3:.0f} thousand cycles by estimate, the layers in turn {alone / 1e3:.0f}")
    return tile, tiles


def _row_cycles(work: SeparableWork) -> float:
    """Estimate the cycles for a row of depthwise sums."""
    vectors = ceil_div(work.width.size, work.lanes)
    return vectors * (work.height.taps * work.width.taps * COSTS["tap"] + COSTS["sum"])


def _cycles(work: SeparableWork, tile: RegisterTile, tiles: int, workers: int) -> float:
    """Estimate the cycles of the longest thread."""
    pixels = tiles * tile.columns
    lines = round_up(ceil_div(pixels, work.width.size) + (pixels % work.width.size > 0), work.rows(pixels))
    m_tiles = ceil_div(work.outputs, tile.rows)
    weights = work.channels * tile.rows * work.size / COSTS["weight_bytes"]
    loads = (tile.rows + tile.vectors) / COSTS["loads"]
    step = max(tile.rows * tile.vectors / COSTS["fmas"], loads) + COSTS["step"]
    strided = COSTS["strided"] if work.width.stride > 1 else 1
    item = work.channels * lines * _row_cycles(work) * strided + COSTS["item"]
    item += m_tiles * (weights + tiles * (work.channels * step + COSTS["part"]))
    return turns(ceil_div(work.pixels, pixels), workers) * item


def _cycles_of_layers(work: SeparableWork, problem: SeparableProblem, planner: Planner) -> float:
    """Estimate the cycles of the longest threads of the two layers, with the launch that one kernel saves."""
    workers = planner.device.compute_units
    sums = work.batch * work.channels * work.height.size * _row_cycles(work) / workers
    launch = COSTS["launch"] + COSTS["launch_core"] * workers
    return forward_cycles(conv_of(problem.product), planner, problem.epilogue) + sums + launch
