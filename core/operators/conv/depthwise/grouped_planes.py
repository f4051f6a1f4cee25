"""Convolution in groups of few channels on CPU devices: small planes, rows of half a vector to eight, zeros between."""

from __future__ import annotations

from clgraft.core.errors import Declined
from clgraft.core.operators.conv.arguments import GRID, GROUP_SCRATCH
from clgraft.core.operators.conv.depthwise.axes import (
    PlaneAxis,
    axes_of_groups,
    grid_argument,
    planes_per_item,
    splits_of_images,
)
from clgraft.core.operators.conv.depthwise.cpu_rows import with_sum
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.epilogue import WHOLE, Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes, has_32_registers, vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Launch, Launches, Local, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div, round_up

NAME = "grouped_planes"
MOST_TAPS = 25  # most taps that are unrolled
MOST_OF_LONG = 9  # most taps that pay off for one channel's rows of two vectors
LONGEST = 8  # most vectors of a row
MOST_CHANNELS = 32  # most channels of a group; more of them are faster as a product of matrices
VECTORS = 4  # vectors of a plane that are summed together
OUTPUTS = 4  # planes that are summed together
FILTER_SUMS = (24, 9)  # registers for sums of gradients of filters, of 32 and of 16
FILTER_BYTES = 320 * 1024  # most bytes of planes and sums of gradients of filters: beyond, a product is faster


def fuses(problem: ConvProblem, epilogue: Epilogue) -> bool:
    """Return whether an epilogue is served: forward, without inputs as large as the result."""
    return problem.direction == "forward" and WHOLE not in epilogue.extras


def plan(problem: ConvProblem, planner: Planner, epilogue: Epilogue | None = None) -> Launches:
    """Plan one launch; a filter's gradient has a second one if the images are split."""
    if not planner.device.is_cpu:
        raise Declined("made for CPU devices")
    height, width = axes_of_groups(problem)
    forward, gradient = (problem.direction == direction for direction in ("forward", "backward_filter"))
    if gradient and problem.depthwise:
        raise Declined("serves backward_filter of groups of several channels")
    sums, outputs = (channels // problem.groups for channels in (problem.in_channels, problem.out_channels))
    if max(sums, outputs) > MOST_CHANNELS or (problem.groups == 1 and sums > 1):
        raise Declined(f"serves groups of up to {MOST_CHANNELS} channels, got {problem.groups} of {sums} and {outputs}")
    if problem.direction == "backward_data":
        if (height.stride, width.stride) != (1, 1):
            raise Declined("serves backward_data at stride 1")
        height, width = (a.turned for a in (height, width))
        sums, outputs = outputs, sums
    if max(height.stride, width.stride) > 2:
        raise Declined("serves strides of 1 and 2")
    if height.taps * width.taps > MOST_TAPS:
        raise Declined(f"{height.taps * width.taps} taps are too many to unroll")
    if min(height.pad, width.pad) < 0:
        raise Declined("serves no negative padding")
    size, lanes = arithmetic_bytes(problem.dtype), vector_lanes(planner.device, problem.dtype)
    pitch = max(_pitch(width, lanes), lanes if gradient else 0)
    longest = (1 if height.taps * width.taps > MOST_OF_LONG else 2) if sums * outputs == 1 else LONGEST
    if pitch > longest * lanes:
        raise Declined(
            f"serves rows that with their padding fit {longest} vectors of {lanes}, got {width.source} to {width.size}"
        )
    if height.size * width.size < lanes:
        raise Declined(f"serves planes of at least {lanes} results, a vector")
    if gradient:
        return _plan_filter(problem, planner, height, width, pitch)
    wide = has_32_registers(planner.device)
    together = min(OUTPUTS, 1 << (outputs - 1).bit_length())
    vectors = 2 * VECTORS if wide and pitch > lanes and together == 1 else VECTORS
    if not wide and together > 2:
        vectors //= 2
    blocks = ceil_div(height.size * pitch, lanes * vectors)
    in_scratch, defines = _in_scratch(height, width, pitch, blocks, blocks * vectors * lanes // pitch)
    phase_size = in_scratch["phase_size"]
    scratch = 2 * sums * height.stride * width.stride * phase_size * size
    weights = outputs * sums * height.taps * width.taps * size
    if scratch + weights > planner.device.local_memory - 1024:
        raise Declined(f"{scratch} bytes of scratch do not fit {planner.device.local_memory} bytes of local memory")
    source, target = ("x", "y") if forward else ("dy", "dx")
    group_bytes = (sums * height.source * width.source + outputs * height.size * width.size) * size
    all_groups = problem.batch * problem.groups
    item_groups = planes_per_item(all_groups, 1, group_bytes, planner)
    defines.update({"VL": lanes, "R": vectors, "O": together, "S": sums, "OUTPUTS": outputs})
    defines.update(epilogue_defines(epilogue))
    launch = Launch(
        planner.kernel("conv/depthwise/grouped_planes.cl", "grouped_planes", defines, problem.dtype, MAD_ENABLE),
        (ceil_div(all_groups, item_groups),),
        (1,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target)),
            *(*ints(problem.groups, not forward), grid_argument(problem.batch, height, width)),
            *(GROUP_SCRATCH.pack(in_scratch), *ints(item_groups), Local(scratch), Local(weights)),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))


def _in_scratch(
    height: PlaneAxis, width: PlaneAxis, pitch: int, blocks: int, rows: int
) -> tuple[dict[str, int], dict[str, int | str]]:
    """Return the fields of the kernels' GroupScratch for results of so many rows, and the macros of planes."""
    above, before = ceil_div(height.pad, height.stride), ceil_div(width.pad, width.stride)
    lead = (above + 1) * pitch
    after = ceil_div(height.reach + height.stride, height.stride) + 2  # lines that taps of the last results reach
    phase_size = lead + (max(rows, ceil_div(height.source, height.stride)) + after) * pitch
    fields = {"first_tap": -above * pitch - before, "lead": lead, "blocks": blocks, "phase_size": phase_size}
    return fields, {
        **{"P": pitch, "KH": height.taps, "KW": width.taps},
        **{"SH": height.stride, "SW": width.stride, "DH": height.step, "DW": width.step},
        **{"BH": above * height.stride - height.pad, "BW": before * width.stride - width.pad},
        **{**GRID.defines(), **GROUP_SCRATCH.defines()},
    }


def _plan_filter(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, pitch: int) -> Launches:
    groups, size, lanes = problem.groups, arithmetic_bytes(problem.dtype), vector_lanes(planner.device, problem.dtype)
    sums, outputs = problem.in_channels // groups, problem.out_channels // groups
    in_scratch, defines = _in_scratch(height, width, pitch, 0, height.size)
    filters = sums * outputs * height.taps * width.taps
    scratch = sums * height.stride * width.stride * in_scratch["phase_size"] * size
    local_bytes = scratch, outputs * height.size * pitch * size, filters * lanes * size
    room = min(planner.device.local_memory - 1024, FILTER_BYTES)
    if sum(local_bytes) > room:
        raise Declined(f"{sum(local_bytes)} bytes of planes and sums do not fit {room} bytes of local memory")
    most = FILTER_SUMS[0 if has_32_registers(planner.device) else 1] // width.taps
    together = 1
    while 2 * together <= most and together < outputs:
        together *= 2
    defines.update({"VL": lanes, "O": together, "S": sums, "OUTPUTS": outputs})
    splits, split_images, item_groups = splits_of_images(problem.batch, groups, planner)
    layout, count = WorkspaceLayout(), groups * filters
    partial = layout.take(splits * count * size if splits > 1 else 0, size)
    file = "conv/depthwise/grouped_planes_filter.cl"
    products = Launch(
        planner.kernel(file, "grouped_planes_filter", defines, problem.dtype, MAD_ENABLE),
        (splits, ceil_div(groups, item_groups)),
        (1, 1),
        (
            *(Buffer("x"), Buffer("dy"), Buffer("dw"), partial, Accumulate("dw")),
            *(*ints(groups), grid_argument(problem.batch, height, width), GROUP_SCRATCH.pack(in_scratch)),
            *(*ints(split_images, item_groups), *map(Local, local_bytes)),
        ),
        ("dw",),
    )
    return with_sum(products, problem, planner, partial, splits, count, layout)


def _pitch(width: PlaneAxis, lanes: int) -> int:
    """Choose the elements of a row in scratch: zeros after it have to cover what taps reach beyond its ends."""
    widest = ceil_div(width.source, width.stride)
    before = ceil_div(width.pad, width.stride)
    firsts = [tap * width.step - width.pad for tap in range(width.taps)]  # where a tap meets result 0
    after = max(
        width.size - 1 + at // width.stride - (width.source - 1 - at % width.stride) // width.stride for at in firsts
    )
    needed = max(widest + max(before, after, 0), width.size)
    return next((pitch for pitch in (lanes // 2, lanes) if needed <= pitch), round_up(needed, 2 * lanes))
