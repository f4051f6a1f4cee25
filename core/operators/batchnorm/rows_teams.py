"""Batch norm of a training step on GPUs where a pixel's channels lie together, as in channels last, in one launch.

A work-group keeps a part of the rows of some channels in registers: memory is read once. Where one does not hold all
rows, those of the same channels meet: they leave sums, and wait for each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.batchnorm.training_kernels import TrainingKernels
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, Scalar, Tickets, Workspace, ints
from clgraft.core.problem import ceil_div

NAME = "rows_teams"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "batchnorm/rows_teams.cl"
GROUPS = (128, 256, 512)  # work-items of a work-group
WIDE = 4  # channels of a work-item
RUN_BYTES = 32  # neighbours that a work-group reads of a row, at least: what memory returns at once
HELD_BYTES = {"forward_training": 128, "backward_training": 104}  # of a tensor, in registers of a work-item
FEW = 4  # rows of a work-item for which a small work-group is enough
REGISTERS = 2**16  # of a compute unit on which work-groups may meet
TEAM_SHARE = 2  # compute units for each work-group of a team: all of it run at once, together with other launches'
MOST_TEAMS = 4096  # the context's counters in ``kernels/batchnorm/teams.cl``
VECTORS = 3  # per channel, of a part
LARGEST = 2**31  # work-items, or elements of a row


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch.

    Raises
    ------
    Declined
        On CPU devices, for other directions, for several pixels of a channel in a row, and for more rows than the
        device holds.
    """
    if planner.device.is_cpu:
        raise Declined("is for GPUs")
    if problem.direction not in HELD_BYTES:
        raise Declined(f"has no {problem.direction}")
    if problem.pixels != 1 or not problem.batch:
        raise Declined(f"got {problem.batch} rows of {problem.pixels} pixels, expected rows of one")
    return _Team(problem, planner).launches()


def columns_of(vectors: int, vector_bytes: int) -> int:
    """Return how many vectors of a row a work-group takes: few, but what memory returns at once."""
    return ceil_div(vectors, max(1, vectors * vector_bytes // RUN_BYTES))


class _Team:
    """The work-groups of the same channels."""

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        self.problem, self.planner, self.kernels = problem, planner, TrainingKernels(problem, planner)
        device, nbytes = planner.device, np.dtype(problem.dtype).itemsize
        self.wide = WIDE if problem.channels % WIDE == 0 else 1
        self.vectors = problem.channels // self.wide
        self.groups = [group for group in GROUPS if group <= device.max_work_group_size]
        if not self.groups:
            raise Declined(f"needs work-groups of {GROUPS[0]}")
        self.held = HELD_BYTES[problem.direction] // (self.wide * max(nbytes, 4 // self.wide))
        self.divide(columns_of(self.vectors, self.wide * nbytes))
        while self.columns > 1 and 2 * self.teams * self.team <= device.compute_units:
            self.divide(ceil_div(self.columns, 2))  # to read more than one needs costs less than idle units
        self.emulated = self.team > 1 and not device.runs_groups_at_once  # a team is one work-group
        if self.team > 1:
            self.expect_to_meet()

    def divide(self, columns: int) -> None:
        """Take so many vectors of a row for each work-group, and rows as many as it holds."""
        rows = self.problem.batch
        enough = (group for group in self.groups if group // columns * min(FEW, self.held) >= rows)
        self.columns, self.teams = columns, ceil_div(self.vectors, columns)
        self.group = next(enough, self.groups[-1])
        lines = self.group // columns
        self.ahead = ceil_div(ceil_div(rows, ceil_div(rows, lines * self.held)), lines)
        self.team = ceil_div(rows, lines * self.ahead)

    def expect_to_meet(self) -> None:
        """Decline where the device does not run all work-groups of a team at once."""
        device = self.planner.device
        most = device.max_work_group_size // self.group if self.emulated else device.compute_units // TEAM_SHARE
        if device.registers < REGISTERS:
            raise Declined(f"has parts that meet, for {REGISTERS} registers, got {device.registers}")
        if self.team > most or self.teams > MOST_TEAMS:
            raise Declined(
                f"got {self.teams} teams of {self.team} work-groups, expected {MOST_TEAMS} of {most} at most"
            )

    def launches(self) -> Launches:
        """Return the launch."""
        problem, kernels, real = self.problem, self.kernels, self.kernels.real
        defines: dict[str, Any] = {
            **kernels.defines,
            "GROUP": self.group,
            "WIDE": self.wide,
            "COLUMNS": self.columns,
            "AHEAD": self.ahead,
            "TEAM": self.team,
            "EMULATED": int(self.emulated),
            "WARPS": int(self.planner.device.has_shuffles),
            "MAKES": 1 if kernels.forward else 2,
        }
        kernel = self.planner.kernel(
            FILE, f"batchnorm_rows_teams_{'forward' if kernels.forward else 'backward'}", defines, problem.dtype
        )
        size = np.dtype(real).itemsize
        met = (Workspace(0, size), Tickets()) if self.team > 1 else ()
        sizes = (*ints(problem.channels), Constant(np.int64(problem.batch)))
        scalars = (Scalar(name, real) for name in problem.scalars())
        together = self.team if self.emulated else 1
        local = (self.columns, self.group // self.columns * together)
        number = self.teams * self.team // together
        if number * self.columns > LARGEST:
            raise Declined(f"counts work-items in 32 bits, got {number} work-groups")
        launch = Launch(
            kernel, (number * local[0], local[1]), local, (*kernels.tensors(), *met, *sizes, *scalars), kernels.outputs
        )
        return Launches((launch,), self.team * VECTORS * problem.channels * size if met else 0)
