"""Convolution of few channels, or with few outputs, on CPU devices, strides 1 and 2: vectors run along pixels.

A first layer and the gradient of its data, or a last layer that makes an image. A product of matrices would fill panels
of pixels that hold each element once for each tap, or that are multiplied with a few rows alone.
"""

from __future__ import annotations

from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.grid import GridAxis, backward_data_grids, spatial_grid
from clgraft.core.operators.conv.past_caches import product_past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.planning.pairs import NUMBERS, product_defines
from clgraft.core.problem import ceil_div, round_up

NAME = "few_planes_cpu"
FILE = "conv/few_planes_cpu.cl"
MOST_PLANES = 4  # channels or outputs
MOST_TAPS = 11  # along an axis: those of a column are unrolled
MOST_ROWS = 8  # of a block
SUMS = (24, 10)  # registers for sums, of 32 and of 16
PAST_SUMS = 8  # past the caches, where a core has buffers for some lines that are stored in a row
MOST_HELD = 40  # sums, and weights of a column of taps that several rows share, of which 32 registers hold most
LEAST_SUMS = 6  # fewer would wait for each other
VECTOR_LOAD, WEIGHT_LOAD = 0.5, 0.25  # by taps, time of loads in multiplications: vectors cross cache lines
MOST_EMPTY = 0.5  # share of a row's lanes that has no pixels, with few outputs
MOST_EMPTY_OF_MANY = 0.15  # and with many, which `few_channels_cpu` serves without empty lanes
LINE_BYTES = 128 * 1024  # of the lines of a chunk of channels, which stay in a core's own cache
WEIGHT_BYTES = 64 * 1024  # of all weights


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: all of them."""
    return problem.direction == "forward"


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one launch, whose work-items share blocks of rows."""
    device, p = planner.device, problem
    if not device.is_cpu:
        raise Declined("made for CPU devices")
    if p.direction not in ("forward", "backward_data"):
        raise Declined(f"has no {p.direction}")
    forward = p.direction == "forward"
    channels, outputs = (p.in_channels, p.out_channels) if forward else (p.out_channels, p.in_channels)
    if min(channels, outputs) > MOST_PLANES:
        raise Declined(f"is for up to {MOST_PLANES} channels or outputs, got {channels} and {outputs}")
    if p.groups != 1 or p.ndim > 2:
        raise Declined("serves one or two spatial axes, no groups")
    if max(p.stride) > 2 or (max(p.stride) > 1 and not forward):
        raise Declined("serves stride 1, or 2 forward")
    if prod(p.kernel) == 1 or max(p.kernel) > MOST_TAPS:
        raise Declined(f"serves several taps, up to {MOST_TAPS} along an axis")
    if min(p.pad_begin) < 0:
        raise Declined("serves no negative padding")
    if not p.flops:
        raise Declined("there is nothing to multiply")
    grid = spatial_grid(p) if forward else backward_data_grids(p)[0]
    _, height, width = grid.axes
    if width.begin > 0:
        raise Declined("serves no gradient with more padding of rows than the kernel reaches")
    size, lanes = arithmetic_bytes(p.dtype), vector_lanes(device, p.dtype)
    columns = round_up(width.size, lanes)
    many = outputs > MOST_PLANES
    if many and not has_32_registers(device):
        raise Declined("is for processors with 32 registers where outputs are many")
    # at stride 2 neighbouring columns are the halves of a number of 32 bits, an operand
    paired = product_defines(p.dtype, device)
    pairs = bool(paired) and width.stride == 2 and width.step == 1
    if many and paired and not pairs:
        raise Declined("leaves pairs of channels to few_channels_cpu where outputs are many and columns are no pairs")
    if columns - width.size > (MOST_EMPTY_OF_MANY if many else MOST_EMPTY) * columns:
        raise Declined(f"rows of {width.size} pixels leave too much of {columns} lanes empty")
    past = product_past_caches(planner, p, lanes)
    wide = has_32_registers(device)
    rows, together, by_lines = _tile(height, outputs, PAST_SUMS if past else SUMS[0 if wide else 1], wide, pairs)
    taps = height.taps * (ceil_div(width.taps, NUMBERS) if pairs else width.taps)
    weight_bytes = channels * taps * round_up(outputs, together) * size
    if weight_bytes > WEIGHT_BYTES:
        raise Declined(f"serves up to {WEIGHT_BYTES} bytes of weights, got {weight_bytes}")
    pitch = columns + round_up(ceil_div((width.taps - 1) * width.step, width.stride), lanes)
    lines = (rows - 1) * height.stride + (height.taps - 1) * height.step + 1
    kinds = 1 if pairs else width.stride  # of columns, which have lines of their own
    plane_bytes = lines * kinds * pitch * size
    sorted_bytes = plane_bytes if kinds > 1 else size
    sum_bytes = rows * round_up(outputs, together) * columns * size if not many else size
    room = device.local_memory - weight_bytes - sum_bytes - sorted_bytes - 5 * 128
    if plane_bytes > room:
        raise Declined(f"{plane_bytes} bytes of lines do not fit {room} bytes of local memory")
    chunk = min(max(min(LINE_BYTES, room) // plane_bytes, 1), channels)
    if many and chunk < channels:
        raise Declined(f"lines of {channels} channels of {plane_bytes} bytes do not fit")
    defines = {
        **{"VL": lanes, "HALF_VL": lanes // 2, "O": together, "R": rows},
        **{"KH": height.taps, "KW": width.taps, "DH": height.step, "DW": width.step},
        **{"SH": height.stride, "SW": width.stride, "BY_LINES": int(by_lines)},
        **({**paired, "PAIRS_OF_COLUMNS": 1} if pairs else {}),
        **{**GRID.defines(), **epilogue_defines(epilogue), **past},
    }
    source, target = ("x", "y") if forward else ("dy", "dx")
    launch = Launch(
        planner.kernel(FILE, "conv_few_planes", defines, p.dtype, MAD_ENABLE),
        (min(p.batch * ceil_div(height.size, rows), device.compute_units),),
        (1,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if p.bias else source), Buffer(target)),
            *(*ints(not forward, p.bias), Accumulate(target), *ints(channels, outputs)),
            *(grid.argument(), *ints(pitch, columns, chunk), Tickets()),
            *map(Local, (chunk * plane_bytes, weight_bytes, sum_bytes, lanes * size, sorted_bytes)),
            *epilogue_arguments(epilogue, p.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def _tile(height: GridAxis, outputs: int, sums: int, wide: bool, pairs: bool) -> tuple[int, int, bool]:
    """Return the rows and outputs that are summed together, and whether columns of taps are multiplied by lines.

    Those with the fewest multiplications and loads. By lines a vector serves all rows that it meets, and compilers keep
    the weights of a column in registers for these rows. Where 32 registers do not hold them, it is by taps: a weight is
    loaded once for the vectors of all rows. Processors with 16 multiply weights from memory.

    Raises
    ------
    Declined
        If they are too few sums.
    """

    def lines_cost(tile: tuple[int, int]) -> float:
        rows, together = tile
        lines = (rows - 1) * height.stride + (height.taps - 1) * height.step + 1
        return multiplied(tile) * (1 + lines / (rows * together * height.taps))

    def taps_cost(tile: tuple[int, int]) -> float:
        rows, together = tile
        return multiplied(tile) * (1 + VECTOR_LOAD / together + WEIGHT_LOAD / rows)

    def multiplied(tile: tuple[int, int]) -> int:
        rows, together = tile
        return round_up(height.size, rows) * round_up(outputs, together)

    tiles = [
        (rows, together)
        for together in range(1, min(outputs, sums) + 1)
        for rows in range(1, min(sums // together, MOST_ROWS, height.size) + 1)
        if rows * together >= LEAST_SUMS
    ]
    if not tiles:
        raise Declined(f"serves {LEAST_SUMS} sums of a column, got {height.size} rows of {outputs} outputs")
    rows, together = min(tiles, key=lines_cost)
    if not pairs and (not wide or rows == 1 or (rows + height.taps) * together <= MOST_HELD):
        return rows, together, True
    return *min(tiles, key=taps_cost), False
