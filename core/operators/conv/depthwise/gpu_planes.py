"""Depthwise convolution of small planes on GPUs: a work-item per plane, which passes through local memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.conv.depthwise.axes import PlaneAxis
from clgraft.core.operators.conv.problem import ConvProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.epilogue import Epilogue, epilogue_arguments, epilogue_defines
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import MAD_ENABLE, arithmetic_bytes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, ints
from clgraft.core.problem import ceil_div

FILE = "conv/depthwise/gpu_planes.cl"
GROUPS = (64, 32)  # planes of a work-group: the second where the first makes too few work-groups
GROUPS_PER_UNIT = 2
MOST_ELEMENTS = 64  # of a plane, which a work-item keeps in registers
MOST_TAPS = 25
MOST_PLANES = 2**31


def reason_against(problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis) -> str:
    """Return why the kernel does not serve a problem; empty if it does."""
    elements = max(height.source * width.source, height.size * width.size)
    if problem.direction == "backward_filter":
        return "has no backward_filter"
    if problem.out_channels != problem.in_channels:
        return f"serves one filter for each channel, not {problem.out_channels // problem.in_channels}"
    if problem.direction == "backward_data" and max(height.stride, width.stride) > 1:
        return f"serves no backward_data of stride {problem.stride}"
    if height.taps * width.taps > MOST_TAPS:
        return f"{height.taps * width.taps} taps are more than {MOST_TAPS}"
    if not 0 < elements <= MOST_ELEMENTS or not height.source * width.source:
        return f"planes of {elements} elements, not of 1 to {MOST_ELEMENTS}"
    if not 0 < problem.batch * problem.in_channels < MOST_PLANES:
        return f"{problem.batch * problem.in_channels} planes, not 1 to {MOST_PLANES}"
    if GROUPS[0] * (elements + 1) * arithmetic_bytes(problem.dtype) > planner.device.local_memory:
        return f"{GROUPS[0]} planes do not fit the local memory"
    return ""


def plan(
    problem: ConvProblem, planner: Planner, height: PlaneAxis, width: PlaneAxis, epilogue: Epilogue | None = None
) -> Launches:
    """Plan one launch for a problem that `reason_against` has nothing against."""
    if problem.direction == "backward_data":
        height, width = height.turned, width.turned
    planes = problem.batch * problem.in_channels
    group = next(
        (g for g in GROUPS if ceil_div(planes, g) >= GROUPS_PER_UNIT * planner.device.compute_units), GROUPS[-1]
    )
    defines = {"GROUP": group, "FLIP": int(problem.direction == "backward_data"), **epilogue_defines(epilogue)}
    for name, axis in (("H", height), ("W", width)):
        defines |= {f"I{name}": axis.source, f"O{name}": axis.size, f"K{name}": axis.taps, f"S{name}": axis.stride}
        defines |= {f"D{name}": axis.step, f"BEGIN_{name}": f"({axis.begin})"}
    kernel = planner.kernel(FILE, "depthwise_gpu_planes", defines, problem.dtype, MAD_ENABLE)
    return launch_planes(problem, kernel, group, group, epilogue)


def launch_planes(
    problem: ConvProblem, kernel: Any, group: int, group_planes: int, epilogue: Epilogue | None
) -> Launches:
    """Return the launch of a kernel of which each work-group, of `group` work-items, takes so many planes."""
    source, target = ("x", "y") if problem.direction == "forward" else ("dy", "dx")
    planes, channels = problem.batch * problem.in_channels, problem.in_channels
    launch = Launch(
        kernel,
        (ceil_div(planes, group_planes) * group,),
        (group,),
        (
            *(Buffer(source), Buffer("w"), Buffer("b" if problem.bias else "w")),  # without a bias, this is never read
            *(Buffer(target), *ints(problem.bias), Accumulate(target), *ints(channels), Constant(np.uint32(planes))),
            divisor_argument(channels),
            *epilogue_arguments(epilogue, problem.dtype),
        ),
        (target,),
    )
    return Launches((launch,))
