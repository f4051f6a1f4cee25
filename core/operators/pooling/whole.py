"""Pooling of whole planes to one value each: global pooling, and windows that hold all of the input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.pooling.arguments import ends, operator_macros
from clgraft.core.operators.pooling.elements import bind, outputs
from clgraft.core.operators.pooling.problem import NORMS, PoolProblem
from clgraft.core.planning.division import divisor_argument
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import arithmetic_bytes
from clgraft.core.planning.launches import Constant, Launch, Launches
from clgraft.core.problem import SMALL, ceil_div, round_up

NAME = "whole"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 8192  # fewer are not worth a work-item's start
GROUP = 128  # work-items of a GPU's work-group
LANE_PIXELS = 8  # of a work-item there, at least
STAGED_PIXELS = 256  # of planes that a work-group brings to local memory, at most
STAGED_LANE = 16  # elements of a work-item there, about
SPREAD = (4, 8)  # elements of a work-item that writes its planes' gradients, and in 16 bits
SHORT_ITEMS = 2  # work-items per core for gradients of planes of up to SHORT_BYTES for each core
SHORT_BYTES = 2**22
VECTORS = 8  # of a CPU's, that a small plane has at most: each number of them is a program
LARGEST = 2**31 - 1


def pixels_and_divisor(problem: PoolProblem) -> tuple[int, int]:
    """Return the elements of a plane that is pooled as a whole, and what its average is divided by.

    Raises
    ------
    Declined
        If windows do not hold all of the input.
    """
    covered = all(k - p >= i for k, p, i in zip(problem.kernel, problem.pad_begin, problem.in_size))
    if set(problem.out_size) != {1} or not covered:
        raise Declined("is for windows that hold all of the input")
    pixels = math.prod(problem.in_size)
    counted = (min(k, e + p) for k, e, p in zip(problem.kernel, ends(problem), problem.pad_begin))
    return pixels, math.prod(counted) if problem.count_padding else pixels


def plan(problem: PoolProblem, planner: Planner) -> Launches:
    """Plan one launch over the planes."""
    pixels, divisor = pixels_and_divisor(problem)
    planes = problem.batch * problem.channels
    arguments: list[Any] = [*bind(problem)]
    macros = operator_macros(problem)
    direction, _, argmax = problem.direction.partition("_")
    if direction == "backward" and problem.operator in NORMS:
        raise Declined("has no gradients of norms")
    if argmax and not problem.windows_are_input:
        raise Declined("counts the places of windows that are the input")
    macros.update({"ARGMAX": 1} if argmax else {})
    if not planner.device.is_cpu:
        lanes = min(GROUP, 1 << (ceil_div(pixels, LANE_PIXELS) - 1).bit_length())
        groups = ceil_div(planes, GROUP // lanes)
        if planner.device.max_work_group_size < GROUP or max(pixels, groups * GROUP) > LARGEST:
            raise Declined(f"needs work-groups of {GROUP}, and counts planes and pixels in 32 bits")
        total = planes * pixels
        if direction == "backward" and problem.operator != "max" and 0 < total <= LARGEST - max(SPREAD) * GROUP:
            each = 1 << (min(SPREAD[problem.dtype in SMALL], pixels).bit_length() - 1)
            macros |= {"GROUP": GROUP, "SPREAD": each}
            kernel = planner.kernel("pooling/whole.cl", "pool_whole_spread", macros, problem.dtype)
            arguments += [Constant(np.uint32(planes)), Constant(np.uint32(pixels)), Constant(np.int64(divisor))]
            arguments.append(divisor_argument(pixels))
            groups = ceil_div(total, each * GROUP)
            return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), tuple(arguments), outputs(problem)),))
        if direction == "forward" and pixels <= STAGED_PIXELS and total <= LARGEST:
            lanes = 1 << (ceil_div(pixels, STAGED_LANE) - 1).bit_length()
            macros |= {"GROUP": GROUP, "LANES": lanes, "PIXELS": pixels}
            held = (round_up(GROUP // lanes * pixels, 4 * GROUP) + 2 * GROUP) * arithmetic_bytes(problem.dtype)
            if held <= planner.device.local_memory:
                kernel = planner.kernel("pooling/whole.cl", "pool_whole_staged", macros, problem.dtype)
                arguments += [Constant(np.uint32(planes)), Constant(np.int64(divisor))]
                groups = ceil_div(planes, GROUP // lanes)
                return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), tuple(arguments), outputs(problem)),))
        name = f"pool_whole_group_{direction}"
        kernel = planner.kernel("pooling/whole.cl", name, {**macros, "GROUP": GROUP, "LANES": lanes}, problem.dtype)
        arguments += [Constant(np.int64(size)) for size in (planes, pixels, divisor)]
        return Launches((Launch(kernel, (groups * GROUP,), (GROUP,), tuple(arguments), outputs(problem)),))
    widest = planner.device.vector_width // (2 if problem.dtype == "float64" else 1)
    lanes = max(2, min(widest, 1 << (pixels.bit_length() - 1)))
    macros.update(VL=lanes, BACKWARD=int(direction == "backward"))
    if direction == "forward" and lanes <= pixels <= VECTORS * lanes:
        macros["VECTORS"] = ceil_div(pixels, lanes)
    kernel = planner.kernel("pooling/whole.cl", f"pool_whole_{direction}", macros, problem.dtype)
    units = planner.device.compute_units
    short = direction == "backward" and planes * pixels * arithmetic_bytes(problem.dtype) <= SHORT_BYTES * units
    share = planes // (units * (SHORT_ITEMS if short else ITEMS_PER_UNIT))
    item_planes = max(1, share, min(planes, ITEM_ELEMENTS // pixels))
    arguments += [Constant(np.int64(v)) for v in (planes, item_planes, pixels, divisor)]
    return Launches((Launch(kernel, (ceil_div(planes, item_planes),), (1,), tuple(arguments), outputs(problem)),))
