"""Batch norm of a training step on CPU devices where a pixel's channels lie together, as in channels last.

Vectors run along channels: memory is read once for the sums of parts of the rows, and once more for the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.batchnorm.training_kernels import TrainingKernels
from clgraft.core.operators.pointwise.generate import outgrows_caches
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.kernels import vector_lanes
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, ints
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import ceil_div

NAME = "rows_cpu"
FILE = "batchnorm/rows_cpu.cl"
DIRECTIONS = ("forward_training", "backward_training")
ITEMS_PER_UNIT = 4  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 16384  # fewer are not worth a work-item's start
FEWEST_LANES = 4
VECTORS = 3  # per channel, of a part and between the launches


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan the sums of parts, what follows from them, and the result.

    Raises
    ------
    Declined
        On other devices, for other directions, for several pixels of a channel in a row, and for channels that are no
        whole vectors.
    """
    if not planner.device.is_cpu:
        raise Declined("is for CPU devices")
    if problem.residual:
        raise Declined("adds no residual")
    if problem.direction not in DIRECTIONS:
        raise Declined(f"has no {problem.direction}")
    if problem.pixels != 1 or not problem.batch:
        raise Declined(f"got {problem.batch} rows of {problem.pixels} pixels, expected rows of one")
    lanes = min(vector_lanes(planner.device, problem.dtype), problem.channels & -problem.channels)
    if lanes < FEWEST_LANES:
        raise Declined(f"{problem.channels} channels are no vectors of {FEWEST_LANES} or more")
    builder = _Rows(problem, planner, lanes)
    return builder.forward() if builder.kernels.forward else builder.backward()


class _Rows:
    """What the launches of a problem share."""

    def __init__(self, problem: BatchNormProblem, planner: Planner, lanes: int) -> None:
        self.problem, self.planner, self.kernels = problem, planner, TrainingKernels(problem, planner)
        self.defines: dict[str, Any] = {**self.kernels.defines, "VL": lanes}
        channels, size = problem.channels, np.dtype(self.kernels.real).itemsize
        elements = problem.batch * channels
        items = max(1, min(planner.device.compute_units * ITEMS_PER_UNIT, elements // ITEM_ELEMENTS))
        self.item_rows = ceil_div(problem.batch, items)
        self.parts = ceil_div(problem.batch, self.item_rows)
        if outgrows_caches(planner, elements * np.dtype(problem.dtype).itemsize):
            self.defines["PAST_CACHES"] = 1
        self.layout = WorkspaceLayout()
        self.partial = self.layout.take(self.parts * VECTORS * channels * size, size)
        self.vectors = self.layout.take(VECTORS * channels * size, size)
        self.rows = (Constant(np.int64(problem.batch)), Constant(np.int64(self.item_rows)))
        self.eps = Scalar("eps", self.kernels.real)
        self.activation = [Scalar(name, self.kernels.real) for name in problem.activation_scalars]
        self.kept = [Buffer(name) for name in self.kernels.kept]

    def launch(self, name: str, makes: int, items: int, arguments: tuple[Any, ...], writes: tuple[str, ...]) -> Launch:
        kernel = self.planner.kernel(FILE, name, {**self.defines, "MAKES": makes}, self.problem.dtype)
        return Launch(kernel, (items,), (1,), arguments, writes)

    def forward(self) -> Launches:
        """Return the launches of forward_training."""
        channels, outputs = self.problem.channels, self.kernels.outputs
        vectors = [item for name in outputs[1:] for item in (Buffer(name), Accumulate(name))]
        statistics = (Buffer("x"), self.partial, *ints(channels), *self.rows)
        join = (self.partial, self.vectors, Buffer("gamma"), Buffer("beta"), *vectors)
        result = (Buffer("x"), self.vectors, Buffer("y"), Accumulate("y"), *ints(channels), *self.rows)
        launches = (
            self.launch("batchnorm_rows_statistics", 1, self.parts, statistics, outputs),
            self.launch(
                "batchnorm_rows_join", 2, channels, (*join, *ints(channels, self.parts), *self.rows, self.eps), outputs
            ),
            self.launch("batchnorm_rows_result", 3, self.parts, (*result, *self.activation), ("y",)),
        )
        return Launches(launches, self.layout.nbytes)

    def backward(self) -> Launches:
        """Return the launches of backward_training."""
        channels, outputs = self.problem.channels, self.kernels.outputs
        read = (Buffer("x"), Buffer("dy"), Buffer("mean"), *self.kept)
        vectors = [item for name in outputs[1:] for item in (Buffer(name), Accumulate(name))]
        products = (*read, self.partial, *ints(channels), *self.rows, *self.activation)
        join = (self.partial, self.vectors, Buffer("gamma"), Buffer("var"), *vectors)
        gradient = (*read, self.vectors, Buffer("dx"), Accumulate("dx"), *ints(channels), *self.rows)
        launches = (
            self.launch("batchnorm_rows_products", 4, self.parts, products, outputs),
            self.launch(
                *("batchnorm_rows_join_products", 5, channels),
                *((*join, *ints(channels, self.parts), self.rows[0], self.eps), outputs),
            ),
            self.launch("batchnorm_rows_gradient", 6, self.parts, (*gradient, *self.activation), ("dx",)),
        )
        return Launches(launches, self.layout.nbytes)
