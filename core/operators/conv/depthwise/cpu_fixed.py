"""Depthwise convolution of planes of one size on CPU devices: the compiler knows all sizes, and a row is few vectors.

Without that, rows of few vectors spend more time on their borders than on sums: each vector needs other masks, and each
block of rows asks which lines are there. Known sizes leave loads, masks that are constants, products and stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, axes_of, planes_per_item
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import WHOLE, Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.problem import ceil_div

NAME = "depthwise_fixed"
FILE = "conv/depthwise/cpu_fixed.cl"
MOST_TAPS, MOST_TAPS_H = 25, 7  # most taps that are unrolled, and most of a column
MOST_TAPS_OF_PAIRS = 5  # of a column, where numbers are read by twos: their blocks have fewer rows
LEAST_LANES = 4  # lanes of the shortest vectors
MOST_VECTORS = 4  # vectors of a row, of the device's lanes
ROWS = 8  # rows of results that share their loads, at most; half of them with 16 registers
MOST_BYTES = 32 * 1024  # bytes of a plane and its results, which stay in a core's L1 cache
# Heights and widths that nets make of images of usual sizes, by halving them; those of Inception, without padding, too.
IMAGES = (28, 32, 128, 160, 192, 224, 256, 299, 320, 384, 448, 512)
USUAL = frozenset(ceil_div(size, 2**halves) for size in IMAGES for halves in range(7)) | {17, 35}


def candidates(problem: ConvProblem, planner: Planner) -> Iterator[Mapping[str, int | str]]:
    """Return the settings to search: the heuristic's (none), then ``lanes`` of a vector and ``rows`` of a block."""
    yield {}
    most = vector_lanes(planner.device, problem.dtype)
    for lanes in (most, most // 2):
        for rows in (ROWS, ROWS - 1, ROWS // 2):
            if lanes >= LEAST_LANES:
                yield {"lanes": lanes, "rows": rows}


def reserved(problem: ConvProblem) -> str:
    """Return why planes of other than usual sizes have other defaults: each size would build a program of its own."""
    unusual = [size for size in problem.in_size if size not in USUAL]
    return f"is the default for planes of usual images, got {unusual[0]} elements along an axis" if unusual else ""


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward, without inputs as large as the result."""
    return problem.direction == "forward" and WHOLE not in epilogue.extras


def plan(
    problem: ConvProblem,
    planner: Planner,
    settings: Mapping[str, int | str] | None = None,
    epilogue: Epilogue | None = None,
) -> Launches:
    """Plan one launch."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    if problem.direction == "backward_filter":
        raise Declined("has no backward_filter")
    forward = problem.direction == "forward"
    if not forward:
        if (height.stride, width.stride) != (1, 1):
            raise Declined("serves backward_data at stride 1")
        if problem.out_channels != problem.in_channels:
            raise Declined("serves backward_data of one filter a channel")
        height, width = (a.turned for a in (height, width))
    if height.taps * width.taps > MOST_TAPS or height.taps > MOST_TAPS_H:
        raise Declined(f"{height.taps} x {width.taps} taps are too many to unroll")
    strides = (height.stride, width.stride)
    if max(strides) > 2 or (max(strides) == 2 and width.step > 1) or height.step > 1:
        raise Declined("serves strides of 1 and 2, and dilation of rows alone at stride 1")
    most = vector_lanes(planner.device, problem.dtype)
    if width.size > MOST_VECTORS * most:
        raise Declined(f"serves rows that fit {MOST_VECTORS} vectors of {most}, got {width.size}")
    channels = problem.out_channels if forward else problem.in_channels
    size, planes = arithmetic_bytes(problem.dtype), problem.batch * channels
    plane_bytes = (height.source * width.source + height.size * width.size) * size
    if plane_bytes > MOST_BYTES:
        raise Declined(f"serves planes that stay in the L1 cache, got {plane_bytes} bytes of source and target")
    at_once = ROWS if has_32_registers(planner.device) else ROWS // 2
    chosen = {"lanes": lanes_of_rows(width.size, most), "rows": at_once}
    # in pairs, one by one, rows that fit a vector would leave more of it empty than they save
    pairs, joined = in_pairs(problem, height, width), 1
    if pairs and width.size > most:
        chosen = {"lanes": lanes_of_rows(ceil_div(width.size, 2), most), "rows": at_once // 2}
    elif pairs and not settings:
        joined = joined_rows(height, width, 2 * most, at_once)
        if joined > 1:
            chosen = {"lanes": most, "rows": ceil_div(height.size, joined)}
    pairs = pairs and (width.size > most or joined > 1)
    chosen.update({name: int(value) for name, value in (settings or {}).items()})
    lanes, rows = chosen.pop("lanes"), chosen.pop("rows")
    if chosen or lanes not in (LEAST_LANES, most // 2, most) or not 1 <= rows <= ROWS:
        raise Declined(f"got settings {settings}, expected lanes of {most // 2} or {most} and rows up to {ROWS}")
    defines: dict[str, int | str] = {
        **{
            "VL": lanes,
            "R": rows if joined > 1 else rows_of_block(height, rows),
            "KH": height.taps,
            "KW": width.taps,
            "FLIP": int(not forward),
        },
        **{"SH": height.stride, "SW": width.stride, "DW": width.step, "BH": height.begin, "BW": width.begin},
        **({"PAIRS": 1, "JOINED": joined} if pairs else {}),
        **flush_defines(problem.dtype, planner.device),
        **{"IH": height.source, "IW": width.source, "OH": height.size, "OW": width.size},
        **epilogue_defines(epilogue),
    }
    item_planes = planes_per_item(planes, 1, plane_bytes, planner)
    source, target = ("x", "y") if forward else ("dy", "dx")
    launch = Launch(
        planner.kernel(FILE, NAME, defines, problem.dtype, MAD_ENABLE),
        (ceil_div(planes, item_planes),),
        (1,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target)),
            *ints(problem.batch, channels, channels // (problem.in_channels if forward else channels), item_planes),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def in_pairs(problem: ConvProblem, height: PlaneAxis, width: PlaneAxis) -> bool:
    """Return whether neighbours are read as the halves of one number: two vectors then share their conversions."""
    strides = height.stride, width.stride, width.step
    taps = height.taps <= MOST_TAPS_OF_PAIRS and width.taps > 1 and width.taps % 2 == 1
    return problem.dtype == "bfloat16" and strides == (1, 1, 1) and taps


def joined_rows(height: PlaneAxis, width: PlaneAxis, places: int, most: int) -> int:
    """Return how many rows of results a vector of so many places takes: 1 where `most` of them are not the plane."""
    joined = min(places // width.size, height.size)
    whole = width.source == width.size and height.source == height.size
    return joined if whole and ceil_div(height.size, joined) <= most else 1


def lanes_of_rows(width: int, most: int) -> int:
    """Choose a vector's lanes: fewer than the device's where a row is shorter.

    Two whole vectors of 17 to 24 elements take less time than three of half the lanes, although these leave fewer idle.
    """
    return min(max(1 << (width - 1).bit_length(), LEAST_LANES), most)


def rows_of_block(height: PlaneAxis, most: int) -> int:
    """Return the rows of a block, of blocks of which only the first and the last meet rows outside of the plane."""
    for rows in range(ceil_div(height.size, ceil_div(height.size, most)), 0, -1):
        blocks = ceil_div(height.size, rows)
        second, before_last = rows, (blocks - 1) * rows - 1  # rows: the first and the last one of the blocks between
        above = second * height.stride < height.pad
        below = before_last * height.stride - height.pad + height.taps > height.source
        if blocks <= 2 or not (above or below):
            return rows
    raise Declined("serves padding that the first and the last rows meet alone")
