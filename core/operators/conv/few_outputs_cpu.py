"""Convolution with few outputs on CPU devices, stride 1: vectors run along pixels.

Forward as in a last layer that makes an image, and the gradient of the data of a first layer. A product of matrices
would fill panels of pixels that are multiplied with a few rows alone.
"""

from __future__ import annotations

from math import prod

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID
from clgraft.core.operators.conv.grid import backward_data_grids, spatial_grid
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, Tickets, ints
from clgraft.core.problem import ceil_div, round_up

NAME = "few_outputs_cpu"
FILE = "conv/few_outputs_cpu.cl"
MOST_OUTPUTS = 4
MOST_TAPS = 11  # along an axis: those of a column are unrolled
MOST_ROWS = 8  # of a block
SUMS = (24, 10)  # registers for sums, of 32 and of 16
LEAST_SUMS = 6  # fewer would wait for each other
MOST_EMPTY = 0.5  # share of a row's lanes that has no pixels
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
    if outputs > MOST_OUTPUTS:
        raise Declined(f"is for up to {MOST_OUTPUTS} outputs, got {outputs}")
    if p.groups != 1 or p.ndim > 2 or max(p.stride) > 1:
        raise Declined("serves one or two spatial axes, stride 1, no groups")
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
    if columns - width.size > MOST_EMPTY * columns:
        raise Declined(f"rows of {width.size} pixels leave too much of {columns} lanes empty")
    most_rows = min(SUMS[0 if has_32_registers(device) else 1] // outputs, MOST_ROWS)
    rows = ceil_div(height.size, ceil_div(height.size, most_rows))
    if rows * outputs < LEAST_SUMS:
        raise Declined(f"serves {LEAST_SUMS} sums in a column of a block, got {rows * outputs}")
    weight_bytes = channels * grid.taps * outputs * size
    if weight_bytes > WEIGHT_BYTES:
        raise Declined(f"serves up to {WEIGHT_BYTES} bytes of weights, got {weight_bytes}")
    pitch = columns + round_up((width.taps - 1) * width.step, lanes)
    plane_bytes = (rows + (height.taps - 1) * height.step) * pitch * size
    sum_bytes = rows * outputs * columns * size
    room = device.local_memory - weight_bytes - sum_bytes - 3 * 128
    if plane_bytes > room:
        raise Declined(f"{plane_bytes} bytes of lines do not fit {room} bytes of local memory")
    chunk = min(max(min(LINE_BYTES, room) // plane_bytes, 1), channels)
    defines = {
        **{"VL": lanes, "HALF_VL": lanes // 2, "O": outputs, "R": rows},
        **{"KH": height.taps, "KW": width.taps, "DH": height.step, "DW": width.step},
        **{**GRID.defines(), **epilogue_defines(epilogue)},
    }
    source, target = ("x", "y") if forward else ("dy", "dx")
    launch = Launch(
        planner.kernel(FILE, "conv_few_outputs", defines, p.dtype, MAD_ENABLE),
        (min(p.batch * ceil_div(height.size, rows), device.compute_units),),
        (1,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if p.bias else source), Buffer(target)),
            *(*ints(not forward, p.bias), Accumulate(target), *ints(channels)),
            *(grid.argument(), *ints(pitch, columns, chunk), Tickets()),
            *map(Local, (chunk * plane_bytes, weight_bytes, sum_bytes)),
            *epilogue_arguments(epilogue, p.dtype),
        ),
        (target,),
    )
    return Launches((launch,))
