"""Batch norm of a training step on GPUs where a pixel's channels lie together, as in channels last.

A work-item has neighbouring channels of some rows. Where work-groups hold all rows in registers, one launch reads
memory once (`rows_teams`). Else memory is read once for the sums of parts of the rows, and once more for the result;
between these a launch joins the sums.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm import rows_teams
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.batchnorm.training_kernels import TrainingKernels
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import (
    Accumulate,
    Buffer,
    Constant,
    Launch,
    Launches,
    OfNorm,
    Scalar,
    Statistics,
    Sums,
    WantedSums,
    Workspace,
    ints,
)
from clgraft.core.planning.workspace import WorkspaceLayout
from clgraft.core.problem import SMALL, ceil_div

NAME = "rows_gpu"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "batchnorm/rows_gpu.cl"
DIRECTIONS = ("forward_training", "backward_training")
GROUP = 256  # work-items of a work-group
WIDE = 4  # channels of a work-item
COLUMNS = (16, 48)  # work-items along the channels of a row, at least and at most
BUSY = 0.93  # share of a work-group's work-items that is enough
MANY = 1024  # work-items of a work-group that joins the sums of many tiles
READ_AT_ONCE = 8  # parts that a work-item of the second launch reads at once, as the kernels have it
JOINED = 8  # channels that a work-group of the second launch joins, as the kernels have it
LEAST_ROWS = 8  # of a work-item
# by the bytes of an element, forward and backward
GROUPS_PER_UNIT = {2: (4, 2), 4: (8, 8), 8: (8, 8)}  # work-groups that each compute unit gets at most
AHEAD = {2: (4, 4), 4: (2, 1), 8: (1, 1)}  # rows that are read at once
VECTORS = 3  # per channel, of a part and between the launches


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch; or the sums of parts, what follows from them, and the result.

    Raises
    ------
    Declined
        On CPU devices, for other directions, and for several pixels of a channel in a row.
    """
    if planner.device.is_cpu:
        raise Declined("is for GPUs")
    if problem.direction not in DIRECTIONS:
        raise Declined(f"has no {problem.direction}")
    if problem.pixels != 1 or not problem.batch:
        raise Declined(f"got {problem.batch} rows of {problem.pixels} pixels, expected rows of one")
    if planner.device.max_work_group_size < GROUP:
        raise Declined(f"needs work-groups of {GROUP}")
    with suppress(Declined):
        return rows_teams.plan(problem, planner)
    builder = _Rows(problem, planner)
    return builder.forward() if builder.kernels.forward else builder.backward()


def columns_of(vectors: int) -> int:
    """Return how many vectors of a row a work-group takes at a time: many that divide them and leave few items idle."""
    best, most = 1, 0.0
    for blocks in range(ceil_div(vectors, COLUMNS[1]), vectors // min(vectors, COLUMNS[0]) + 1):
        columns = ceil_div(vectors, blocks)
        busy = vectors * (GROUP // columns) / (blocks * GROUP)
        if busy > most:
            best, most = columns, busy
        if busy >= BUSY and vectors % columns == 0:
            return columns
    return best


def wanted_sums(problem: BatchNormProblem, planner: Planner) -> WantedSums:
    """Return what the kernel is to leave that makes x, or dy: those of dy are taken with x at the same places."""
    if problem.direction not in DIRECTIONS or problem.dtype not in SMALL:
        raise Declined("takes sums of 16 bits in training")
    if rows_teams.holds(problem, planner):
        raise Declined("reads memory once without them")
    kernels, names = TrainingKernels(problem, planner), problem.activation_scalars
    if kernels.forward:
        return WantedSums({"STATISTICS": 1}, (Statistics(),))
    read = (OfNorm(Buffer(name)) for name in ("x", "mean", *kernels.kept))
    scalars = (OfNorm(Scalar(name, kernels.real)) for name in names)
    return WantedSums({"GRADIENT_SUMS": 1, **kernels.defines}, (*read, Statistics(), *scalars), names, True)


def plan_after(problem: BatchNormProblem, planner: Planner, sums: Sums) -> Launches:
    """Plan what follows from the sums that the kernel before has left, and the result."""
    if problem.channels != sums.channels:
        raise Declined(f"takes sums of {problem.channels} channels")
    return _Rows(problem, planner).after(sums.tiles)


class _Rows:
    """What the launches of a problem share."""

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        self.problem, self.planner, self.kernels = problem, planner, TrainingKernels(problem, planner)
        channels, size = problem.channels, np.dtype(self.kernels.real).itemsize
        nbytes, backward = np.dtype(problem.dtype).itemsize, int(not self.kernels.forward)
        wide = WIDE if channels % WIDE == 0 else 1
        columns = columns_of(channels // wide)
        sizes = {"GROUP": GROUP, "WIDE": wide, "COLUMNS": columns, "AHEAD": AHEAD[nbytes][backward]}
        self.defines: dict[str, Any] = {**self.kernels.defines, **sizes}
        self.columns, self.blocks = columns, ceil_div(channels, columns * wide)
        wanted = ceil_div(planner.device.compute_units * GROUPS_PER_UNIT[nbytes][backward], self.blocks)
        least = LEAST_ROWS * GROUP // columns
        part_rows = ceil_div(problem.batch, max(1, min(wanted, problem.batch // least)))
        self.parts = ceil_div(problem.batch, part_rows)
        self.layout = WorkspaceLayout()
        self.partial = self.layout.take(self.parts * VECTORS * channels * size, size)
        self.vectors = self.layout.take(VECTORS * channels * size, size)
        self.rows = (Constant(np.int64(problem.batch)), Constant(np.int64(part_rows)))
        self.eps = Scalar("eps", self.kernels.real)
        self.activation = [Scalar(name, self.kernels.real) for name in problem.activation_scalars]
        self.kept = [Buffer(name) for name in self.kernels.kept]

    def launch(
        self, name: str, makes: int, arguments: tuple[Any, ...], writes: tuple[str, ...], joining: int = GROUP
    ) -> Launch:
        """Return a launch over the rows, or one that joins the sums of the parts in work-groups of `joining`."""
        defines = {**self.defines, "GROUP": joining, "MAKES": makes}
        kernel = self.planner.kernel(FILE, name, defines, self.problem.dtype)
        if "_join" in name:
            size = ceil_div(self.problem.channels, JOINED) * joining
            return Launch(kernel, (size,), (joining,), arguments, writes)
        group = (self.columns, GROUP // self.columns)  # of as many lines as there is room for
        return Launch(kernel, (self.blocks * group[0], self.parts * group[1]), group, arguments, writes)

    def forward(self) -> Launches:
        """Return the launches of forward_training."""
        outputs, sizes = self.kernels.outputs, ints(self.problem.channels)
        statistics = (Buffer("x"), self.partial, *sizes, *self.rows)
        launches = (
            self.launch("batchnorm_rows_gpu_statistics", 1, statistics, outputs),
            self.launch("batchnorm_rows_gpu_join", 2, self.joining(self.partial, self.parts), outputs),
            self.result(),
        )
        return Launches(launches, self.layout.nbytes)

    def after(self, tiles: int) -> Launches:
        """Return the launches after a convolution, or its data gradient, that has left sums of so many tiles."""
        wide = tiles > READ_AT_ONCE * GROUP // JOINED and self.planner.device.max_work_group_size >= MANY
        group, outputs = MANY if wide else GROUP, self.kernels.outputs
        if not self.kernels.forward:
            return Launches((self.join_products(Statistics(), tiles, group), self.gradient()), self.layout.nbytes)
        join = self.launch("batchnorm_rows_gpu_join", 7, self.joining(Statistics(), tiles), outputs, group)
        return Launches((join, self.result()), self.layout.nbytes)

    def joining(self, sums: Workspace | Statistics, parts: int) -> tuple[Any, ...]:
        """Return the arguments of the launch that joins forward's sums."""
        vectors = [item for name in self.kernels.outputs[1:] for item in (Buffer(name), Accumulate(name))]
        read = (sums, self.vectors, Buffer("gamma"), Buffer("beta"))
        return (*read, *vectors, *ints(self.problem.channels, parts), self.rows[0], self.eps)

    def result(self) -> Launch:
        """Return the last launch of forward_training."""
        y, sizes = (Buffer("y"), Accumulate("y")), ints(self.problem.channels)
        added = (Buffer("residual"),) if self.problem.residual else ()
        arguments = (Buffer("x"), self.vectors, *added, *y, *sizes, *self.rows, *self.activation)
        return self.launch("batchnorm_rows_gpu_result", 3, arguments, ("y",))

    def backward(self) -> Launches:
        """Return the launches of backward_training."""
        outputs, sizes = self.kernels.outputs, ints(self.problem.channels)
        products = (*self.read, self.partial, *sizes, *self.rows, *self.activation)
        launches = (
            self.launch("batchnorm_rows_gpu_products", 4, products, outputs),
            self.join_products(self.partial, self.parts, GROUP),
            self.gradient(),
        )
        return Launches(launches, self.layout.nbytes)

    @property
    def read(self) -> tuple[Any, ...]:
        """What the launches of backward_training over the rows read."""
        return (Buffer("x"), Buffer("dy"), Buffer("mean"), *self.kept)

    def join_products(self, sums: Workspace | Statistics, parts: int, group: int) -> Launch:
        """Return the launch that joins backward's sums in work-groups of a size."""
        outputs, sizes = self.kernels.outputs, ints(self.problem.channels, parts)
        vectors = [item for name in outputs[1:] for item in (Buffer(name), Accumulate(name))]
        arguments = (sums, self.vectors, Buffer("gamma"), Buffer("var"), *vectors, *sizes, self.rows[0], self.eps)
        return self.launch("batchnorm_rows_gpu_join_products", 5, arguments, outputs, group)

    def gradient(self) -> Launch:
        """Return the last launch of backward_training."""
        place, sizes = (Buffer("dx"), Accumulate("dx")), ints(self.problem.channels)
        arguments = (*self.read, self.vectors, *place, *sizes, *self.rows, *self.activation)
        return self.launch("batchnorm_rows_gpu_gradient", 6, arguments, ("dx",))
