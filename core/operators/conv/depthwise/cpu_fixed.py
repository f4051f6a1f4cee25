"""Depthwise convolution of planes of one size on CPU devices: the compiler knows all sizes, and a row is few vectors.

Without that, rows of few vectors spend more time on their borders than on sums: each vector needs other masks, and each
block of rows asks which lines are there. Known sizes leave loads, masks that are constants, products and stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.depthwise.axes import PlaneAxis, axes_of, planes_per_item
from clgraft.core.operators.conv.depthwise.cpu_rows import L1_BYTES, past_from
from clgraft.core.operators.conv.past_caches import past_caches
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import WHOLE, Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import ITEMS_PER_UNIT, MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, ints
from clgraft.core.planning.pairs import flush_defines
from clgraft.core.problem import ceil_div

NAME = "depthwise_fixed"
FILE = "conv/depthwise/cpu_fixed.cl"
MOST_TAPS, MOST_TAPS_H = 25, 7  # most taps that are unrolled, and most of a column
MOST_TAPS_OF_PAIRS = 5  # of a column, where numbers are read by twos: their blocks have fewer rows
LEAST_LANES = 4  # lanes of the shortest vectors
ROWS = 8  # rows of results that share their loads, at most; half of them with 16 registers, or in large planes
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
    if max(strides) > 2 or (max(strides) == 2 and max(height.step, width.step) > 1):
        raise Declined("serves strides of 1, or of 2 without dilation")
    most = vector_lanes(planner.device, problem.dtype)
    channels = problem.out_channels if forward else problem.in_channels
    size, planes = arithmetic_bytes(problem.dtype), problem.batch * channels
    plane_bytes = (height.source * width.source + height.size * width.size) * size
    large = plane_bytes > L1_BYTES
    at_once = ROWS if has_32_registers(planner.device) and not large else ROWS // 2
    if large:
        _expect_in_order(height, width, at_once, size, planes, planner)
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
    if height.step > 1 and lanes > width.size:  # what a longer vector leaves after its row's end would stay there
        raise Declined(f"serves dilated rows of at least {lanes} elements")
    defines: dict[str, int | str] = {
        **{
            "VL": lanes,
            "R": rows if joined > 1 else rows_of_block(height, rows),
            "KH": height.taps,
            "KW": width.taps,
            "FLIP": int(not forward),
        },
        **{"SH": height.stride, "SW": width.stride, "DH": height.step, "DW": width.step},
        **{"BH": height.begin, "BW": width.begin},
        **({"PAIRS": 1, "JOINED": joined} if pairs else {}),
        **({} if pairs or width.size % lanes else past_caches(planner, problem, lanes, past_from(planner.device))),
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


def _expect_in_order(height: PlaneAxis, width: PlaneAxis, rows: int, size: int, planes: int, planner: Planner) -> None:
    """Check that planes larger than the L1 cache are read once, in the order of memory, and occupy all cores.

    Raises
    ------
    Declined
        If rows lie a dilation apart, a block's lines do not stay in the L1 cache, or there are few planes.
    """
    if height.step > 1:
        raise Declined("serves dilated rows of planes that stay in the L1 cache")
    lines = (rows - 1) * height.stride + height.taps
    if (lines * width.source + rows * width.size) * size > L1_BYTES:
        raise Declined(f"serves blocks whose lines stay in the L1 cache, got {lines} of {width.source} elements")
    if planes < planner.device.compute_units * ITEMS_PER_UNIT:
        raise Declined(f"does not cut planes into tiles, which {planes} of them have to be")


def in_pairs(problem: ConvProblem, height: PlaneAxis, width: PlaneAxis) -> bool:
    """Return whether neighbours are read as the halves of one number: two vectors then share their conversions."""
    strides = height.stride, width.stride, height.step * width.step
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
    """Return the rows of a block, of blocks of which only the first and the last meet rows outside of the plane.

    Rows that lie a dilation apart are in blocks of their own.
    """
    step = height.step
    counts = {ceil_div(height.size - d, step): d for d in range(step)}  # of rows, and the last ones that are so many
    equal = ceil_div(max(counts), ceil_div(max(counts), most))  # blocks of about as many rows
    for rows in range(min(equal, *counts), 0, -1):
        above = rows * step * height.stride < height.pad  # the second block's first row
        for count, d in counts.items():
            blocks = ceil_div(count, rows)
            before_last = (d + ((blocks - 1) * rows - 1) * step) * height.stride - height.pad
            if blocks > 2 and (above or before_last + (height.taps - 1) * step >= height.source):
                break
        else:
            return rows
    raise Declined("serves padding that the first and the last rows meet alone")
