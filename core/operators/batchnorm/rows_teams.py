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

FILE = "batchnorm/rows_teams.cl"
GROUPS = (128, 256, 512)  # work-items of a work-group
WIDE = 4  # channels of a work-item
RUN_BYTES = 32  # neighbours that a work-group reads of a row, at least: what memory returns at once
HELD_BYTES = {"forward_training": 128, "backward_training": 104}  # of a tensor, in registers of a work-item
FEW = 4  # rows of a work-item for which a small work-group is enough
REGISTERS = 2**16  # of a compute unit on which work-groups may meet
TEAM_SHARE = 2  # compute units for each work-group of a team: all of it run at once, together with other launches'
MOST_TEAM = 4  # work-groups that meet: more of them wait longer than two further launches take
VECTORS = 3  # per channel, of a part
LARGEST = 2**31  # work-items, or elements of a row


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch for rows of one pixel on a GPU.

    Raises
    ------
    Declined
        For more rows than work-groups hold.
    """
    return _Team(problem, planner).launches()


def holds(problem: BatchNormProblem, planner: Planner) -> bool:
    """Return whether a work-group alone holds all rows, so that nobody waits."""
    try:
        return _Team(problem, planner).team == 1
    except Declined:
        return False


def columns_of(vectors: int, vector_bytes: int) -> int:
    """Return how many vectors of a row a work-group takes: few, but what memory returns at once."""
    return ceil_div(vectors, max(1, vectors * vector_bytes // RUN_BYTES))


class _Team:
    """The work-groups of the same channels."""

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        if problem.direction not in HELD_BYTES:
            raise Declined(f"has no {problem.direction}")
        self.problem, self.planner, self.kernels = problem, planner, TrainingKernels(problem, planner)
        device, nbytes = planner.device, np.dtype(problem.dtype).itemsize
        self.wide = WIDE if problem.channels % WIDE == 0 else 1
        groups = [group for group in GROUPS if group <= device.max_work_group_size]
        if not groups:
            raise Declined(f"needs work-groups of {GROUPS[0]}")
        rows, held = problem.batch, HELD_BYTES[problem.direction] // (self.wide * max(nbytes, 4 // self.wide))
        vectors = problem.channels // self.wide
        self.columns = columns_of(vectors, self.wide * nbytes)
        self.teams = ceil_div(vectors, self.columns)
        enough = (group for group in groups if group // self.columns * min(FEW, held) >= rows)
        self.group = next(enough, groups[-1])
        lines = self.group // self.columns
        self.ahead = ceil_div(ceil_div(rows, ceil_div(rows, lines * held)), lines)
        self.team = ceil_div(rows, lines * self.ahead)
        self.emulated = self.team > 1 and not device.runs_groups_at_once  # a team is one work-group
        if self.team > 1:
            self.expect_to_meet()

    def expect_to_meet(self) -> None:
        """Decline where too many work-groups meet, and where the device does not run all of them at once."""
        device, number = self.planner.device, self.teams * self.team
        if device.registers < REGISTERS:
            raise Declined(f"has parts that meet, for {REGISTERS} registers, got {device.registers}")
        most = device.max_work_group_size // self.group if self.emulated else device.compute_units // TEAM_SHARE
        if self.team > min(most, MOST_TEAM):
            raise Declined(f"got teams of {self.team} work-groups, expected {min(most, MOST_TEAM)} at most")
        if number > device.compute_units and not self.emulated:
            raise Declined(f"got {number} work-groups that meet, expected {device.compute_units} at most")

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
