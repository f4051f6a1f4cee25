"""Cross entropy: sums in parts that a second launch joins; gradients in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.crossentropy.problem import CrossEntropyProblem
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, Workspace
from clgraft.core.problem import ceil_div, round_up

NAME = "direct"

ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 8192  # fewer are not worth a work-item's start
LABELS_PER_PART = {True: 2048, False: 16}  # True: on a CPU device
MOST_PARTS = 1024
LOCAL = 64


def plan(problem: CrossEntropyProblem, planner: Planner) -> Launches:
    """Plan a direction."""
    return _gradient(problem, planner) if problem.direction == "backward" else _sums(problem, planner)


def _scalar(problem: CrossEntropyProblem, name: str) -> Scalar | Constant:
    """Bind a scalar, or 0 for one that the problem lacks."""
    real = "float64" if problem.dtype == "float64" else "float32"
    return Scalar(name, real) if name in problem.scalars() else Constant(np.dtype(real).type(0))


def _sizes(problem: CrossEntropyProblem) -> list[Constant]:
    return [Constant(np.int64(size)) for size in (problem.images, problem.channels, problem.pixels)]


def _sums(problem: CrossEntropyProblem, planner: Planner) -> Launches:
    names = [argument.name for argument in problem.arguments()]
    with_loss = problem.direction == "forward"
    itemsize = 8 if problem.dtype == "float64" else 4
    labels = problem.images * problem.pixels
    parts = max(1, min(labels // LABELS_PER_PART[planner.device.is_cpu], MOST_PARTS))
    macros = {"IGNORING": int(problem.ignoring)}
    losses, found = Workspace(0, itemsize), Workspace(round_up(parts * itemsize, 64), 4)
    flag, count = Constant(np.int32(with_loss)), Constant(np.int64(parts))
    one: list[Any] = [Buffer(names[0]), Buffer("label"), losses, found, _scalar(problem, "lowest")]
    one += [_scalar(problem, "ignored"), flag, *_sizes(problem), count]
    # without a loss nothing is written there
    result: list[Any] = [Buffer("loss"), Accumulate("loss")] if with_loss else [losses, Constant(np.int32(0))]
    two = [losses, found, *result, Buffer("counts"), flag, count]
    first, second = (
        planner.kernel("crossentropy/direct.cl", f"crossentropy_{name}", macros, problem.dtype)
        for name in ("parts", "join")
    )
    local = 1 if planner.device.is_cpu else LOCAL
    launches = (
        Launch(first, (round_up(parts, local),), (local,), tuple(one)),
        Launch(second, (1,), (1,), tuple(two)),
    )
    return Launches(launches, found.offset_bytes + 8 * parts)


def _gradient(problem: CrossEntropyProblem, planner: Planner) -> Launches:
    images, channels, pixels = problem.images, problem.channels, problem.pixels
    device = planner.device
    macros = {name.upper(): int(getattr(problem, name)) for name in ("ignoring", "weighted", "by_count")}
    itemsize = 8 if problem.dtype == "float64" else 4
    bound: list[Any] = [
        Buffer("y"),
        Buffer("label"),
        Buffer("dy" if problem.weighted else "y"),
        Buffer("counts") if problem.by_count else Workspace(0, 4),
        Buffer("dx"),
        Accumulate("dx"),
        *(_scalar(problem, name) for name in ("scale", "smooth", "ignored")),
        *_sizes(problem),
    ]
    lanes = max(2, device.vector_width * 4 // itemsize)
    if not device.is_cpu or 1 < pixels < lanes:
        kernel = planner.kernel("crossentropy/direct.cl", "crossentropy_elements", macros, problem.dtype)
        size = round_up(images * channels * pixels, LOCAL)
        return Launches((Launch(kernel, (size,), (LOCAL,), tuple(bound), ("dx",)),), 64)
    if pixels == 1:
        lanes = min(lanes, max(2, 1 << (channels - 1).bit_length()))  # as many as are of use
    shape, units, length = ("rows", images, channels) if pixels == 1 else ("planes", images * channels, pixels)
    item_units = max(1, ceil_div(units, device.compute_units * ITEMS_PER_UNIT), min(units, ITEM_ELEMENTS // length))
    kernel = planner.kernel("crossentropy/direct.cl", f"crossentropy_{shape}", {**macros, "VL": lanes}, problem.dtype)
    bound.append(Constant(np.int64(item_units)))
    return Launches((Launch(kernel, (ceil_div(units, item_units),), (1,), tuple(bound), ("dx",)),), 64)
