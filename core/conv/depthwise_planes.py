"""Depthwise convolution of small planes on CPU devices: rows of half a vector to two, with zeros between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgraft.core.conv.depthwise_axes import Axis, arithmetic_bytes, axes_of, ints, long, planes_per_item, vector_lanes
from clgraft.core.conv.problem import ConvProblem
from clgraft.core.errors import Declined
from clgraft.core.plan import Accumulate, Buffer, Launch, Local, Steps

if TYPE_CHECKING:
    from clgraft.core.context import Context

NAME = "depthwise_planes"
OPTIONS = ("-cl-mad-enable",)
MOST_TAPS = 25  # that are unrolled
SUMS = 4  # vectors of results that are summed side by side, of short rows
MOST_OF_LONG = 9  # taps that are worth it for rows of two vectors


def plan(problem: ConvProblem, context: Context) -> Steps:
    """Plan one launch."""
    if not context.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of(problem)
    forward = problem.direction == "forward"
    multiplier = problem.out_channels // problem.in_channels
    if problem.direction == "backward_filter":
        raise Declined("has no backward_filter")
    if not forward:
        if (height.s, width.s, multiplier) != (1, 1, 1):
            raise Declined("serves backward_data at stride 1 of one filter a channel")
        height, width = (Axis(a.o, a.i, a.k, 1, a.reach - a.p, a.d) for a in (height, width))
    if max(height.s, width.s) > 2:
        raise Declined("serves strides of 1 and 2")
    if height.k * width.k > MOST_TAPS:
        raise Declined(f"{height.k * width.k} taps are too many to unroll")
    if min(height.p, width.p) < 0:
        raise Declined("serves no negative padding")
    size, lanes = arithmetic_bytes(problem), vector_lanes(problem, context)
    pitch = _pitch(width, lanes)
    if pitch > lanes and height.k * width.k > MOST_OF_LONG:
        raise Declined(f"serves {MOST_OF_LONG} taps in rows longer than a vector, got {height.k * width.k}")
    if height.o * width.o < lanes:
        raise Declined(f"serves planes of at least {lanes} results, a vector")
    vectors = -(-height.o * pitch // lanes)
    sums = SUMS if pitch <= lanes or context.device.vector_width < 16 else 2 * SUMS
    blocks = -(-vectors // sums)
    above, before = -(-height.p // height.s), -(-width.p // width.s)
    lead = (above + 1) * pitch
    behind = -(-(height.reach + height.s) // height.s) + 2  # lines that taps of the last results reach
    phase_size = lead + (max(blocks * sums * lanes // pitch, -(-height.i // height.s)) + behind) * pitch
    scratch = 2 * height.s * width.s * phase_size * size
    if scratch > context.device.local_memory - 1024:
        raise Declined(f"{scratch} bytes of scratch do not fit {context.device.local_memory} bytes of local memory")
    source, target = ("x", "y") if forward else ("dy", "dx")
    channels = problem.out_channels if forward else problem.in_channels
    targets = problem.batch * channels
    item_planes = planes_per_item(targets, 1, (height.i * width.i + height.o * width.o) * size, context)
    defines = {
        **{"VL": lanes, "P": pitch, "R": sums, "KH": height.k, "KW": width.k},
        **{"SH": height.s, "SW": width.s, "DH": height.d, "DW": width.d},
        **{"BH": above * height.s - height.p, "BW": before * width.s - width.p},
    }
    launch = Launch(
        context.kernel("depthwise_planes.cl", "depthwise_planes", defines, problem.dtype, OPTIONS),
        (-(-targets // item_planes),),
        (1,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target), long(targets)),
            *ints(channels, multiplier, not forward, height.i, width.i, height.o, width.o),
            *ints(-above * pitch - before, lead, blocks, phase_size, item_planes),
            Local(scratch),
        ),
        (target,),
    )
    return Steps((launch,))


def _pitch(width: Axis, lanes: int) -> int:
    """Choose the elements of a row in scratch: zeros behind it have to cover what taps reach over its ends."""
    widest = -(-width.i // width.s)
    before = -(-width.p // width.s)
    firsts = [tap * width.d - width.p for tap in range(width.k)]  # where a tap meets result 0
    behind = max(width.o - 1 + at // width.s - (width.i - 1 - at % width.s) // width.s for at in firsts)
    needed = max(widest + max(before, behind, 0), width.o)
    for pitch in (lanes // 2, lanes, 2 * lanes):
        if needed <= pitch:
            return pitch
    raise Declined(f"serves rows that with their padding ({needed}) are no longer than two vectors of {lanes}")
