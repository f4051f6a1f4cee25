"""Batch norm of a training step on GPUs, with few launches.

A work-group takes a whole channel and keeps it in registers where it fits: one launch, which reads memory once and
writes it once. Longer channels are cut into parts: a launch for their sums, and one for the result that joins the sums.
On devices with many registers a work-group keeps longer channels, and where work-groups run at once, those of a
channel keep their parts, too, and meet in one launch.
The statistics are those of x minus the mean of the channel, or of a part's first values: see `generated` for why this
keeps digits where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.batchnorm.training_kernels import TrainingKernels
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Constant, Launch, Launches, Scalar, Tickets, Workspace, ints
from clgraft.core.problem import SMALL, ceil_div, round_up

NAME = "channels"
FOR_GPUS = True  # a search on a CPU device does not try it
WHOLE_FILE, PARTS_FILE = "batchnorm/channels.cl", "batchnorm/parts.cl"
# work-items of a work-group that takes a whole channel; backward holds two tensors, for which 1024 lack registers
GROUPS = {"forward_training": (128, 256, 512, 1024), "backward_training": (128, 256, 512)}
MOST_SHARING = 512  # of these, up to which a compute unit takes several work-groups
MOST_HELD = 8  # reads of a tensor that such a work-item keeps: more take too many registers
LONE_REGISTERS = 2**16  # of a compute unit, which one of the work-groups below fills, or several of a team
# work-groups of which one fills a compute unit, and the reads of a tensor that a work-item keeps there
LONE_GROUPS = {"forward_training": ((512, 19), (256, 49)), "backward_training": ((512, 13),)}
MOST_IDLE = 1.1  # compute units times rounds of such work-groups, for each channel
TEAM_GROUP = 256  # work-items of a work-group that takes a part of a channel and keeps it
TEAM_EACH = {"forward_training": 8, "backward_training": 6}  # its reads of a tensor
TEAM_SHARE = 2  # compute units for each work-group of a team: all of it run at once, together with other launches'
WARP = 32  # work-items of a warp
MOST_TEAMS = 4096  # channels that meet: the context's counters in ``kernels/batchnorm/parts.cl``
PART_GROUP = 256  # work-items of a work-group that takes a part
SMALL_PART_GROUP = 128  # in 16 bits without shuffles, by measurements on an H200
PART_EACH = {"forward_training": 4, "backward_training": 2}  # its reads that are on their way at once
GROUPS_PER_UNIT = 32  # parts that each compute unit should get at least
SUMS = 3  # sums of a part
FEWEST_PIXELS = 8
MOST_ELEMENTS = 2**31  # elements of a channel
COUNTED_IN_32_BITS = 2**32  # fewer elements of a tensor are counted in 32 bits


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch, or two.

    Raises
    ------
    Declined
        On CPU devices, for other directions, and where neighbouring pixels are too few.
    """
    if planner.device.is_cpu:
        raise Declined("made for GPUs")
    if problem.residual:
        raise Declined("adds no residual")
    if problem.direction not in GROUPS:
        raise Declined(f"has no {problem.direction}")
    if problem.pixels < FEWEST_PIXELS:
        raise Declined(f"{problem.pixels} pixels, fewer than {FEWEST_PIXELS}, do not fill what memory returns at once")
    if not 0 < problem.batch * problem.pixels < MOST_ELEMENTS:
        raise Declined(f"channels of {problem.batch * problem.pixels} elements, not of 1 to {MOST_ELEMENTS}")
    groups = [group for group in GROUPS[problem.direction] if group <= planner.device.max_work_group_size]
    if PART_GROUP not in groups:
        raise Declined(f"work-groups of {planner.device.max_work_group_size} are too small")
    norm = _Norm(problem, planner)
    group = next((group for group in groups if group * MOST_HELD >= norm.steps), 0)
    if group == 0 or group > MOST_SHARING:
        group = norm.lone_group() or group
    team = 0 if group else norm.team()
    if team:
        return norm.teams(team)
    return norm.whole(group) if group else norm.parts()


class _Norm(TrainingKernels):
    """What the kernels of a problem have in common."""

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        super().__init__(problem, planner)
        self.wide = 4 if problem.pixels % 4 == 0 else 1
        self.steps = problem.batch * problem.pixels // self.wide
        self.emulated = not planner.device.runs_groups_at_once  # a team is one work-group
        self.defines["WIDE"] = self.wide
        elements = problem.batch * problem.channels * problem.pixels
        self.defines["INDEX"] = "uint" if elements < COUNTED_IN_32_BITS else "ulong"

    def lone_group(self) -> int:
        """Return the size of a work-group that fills a compute unit with a channel; 0: none, or units would idle."""
        device, problem = self.planner.device, self.problem
        units = round_up(problem.channels, device.compute_units)
        if device.registers < LONE_REGISTERS or problem.dtype == "float64" or self.wide == 1:
            return 0
        if units > MOST_IDLE * problem.channels:
            return 0
        return next((group for group, held in LONE_GROUPS[problem.direction] if group * held >= self.steps), 0)

    def team(self) -> int:
        """Return how many work-groups keep a channel and meet; 0: none on this device, or too many."""
        device, problem = self.planner.device, self.problem
        if device.registers < LONE_REGISTERS or problem.dtype == "float64" or self.wide == 1:
            return 0
        team = ceil_div(self.steps, TEAM_GROUP * TEAM_EACH[problem.direction])
        most = device.compute_units // TEAM_SHARE
        if self.emulated:
            most = device.max_work_group_size // TEAM_GROUP
        return team if team <= most and problem.channels <= MOST_TEAMS else 0

    def teams(self, team: int) -> Launches:
        """Plan so many work-groups for parts of each channel, which meet in one launch."""
        channels = self.problem.channels
        partial = Workspace(0, np.dtype(self.real).itemsize)
        kernel = ("batchnorm_teams_forward", 5) if self.forward else ("batchnorm_teams_backward", 6)
        each = ceil_div(ceil_div(self.steps, TEAM_GROUP), team)
        team = ceil_div(self.steps, each * TEAM_GROUP)
        defines = {"GROUP": TEAM_GROUP, "EACH": each, "TEAM": team, "EMULATED": int(self.emulated)}
        arguments = self.result(Constant(np.uint32(self.steps)), partial=(partial, Tickets()))
        launch = self.launch(PARTS_FILE, kernel, defines, channels * team, arguments, self.outputs)
        return Launches((launch,), channels * team * SUMS * partial.itemsize)

    def launch(
        self,
        file: str,
        kernel: tuple[str, int],
        defines: dict[str, Any],
        groups: int,
        arguments: Sequence[Any],
        outputs: tuple[str, ...] = (),
    ) -> Launch:
        name, makes = kernel
        shuffles = self.planner.device.has_shuffles and self.real == "float32"
        # with single elements, backward is faster without (29 instead of 32 us for 64 x 2048 x 7 x 7 on an H200)
        warps = int(shuffles and (self.wide > 1 or self.forward) and defines["GROUP"] % WARP == 0)
        macros = {**self.defines, **defines, "MAKES": makes, "WARPS": warps}
        built = self.planner.kernel(file, name, macros, self.problem.dtype)
        together = defines["GROUP"] * (defines["TEAM"] if defines.get("EMULATED") else 1)
        return Launch(built, (groups * defines["GROUP"],), (together,), tuple(arguments), outputs)

    def result(self, *numbers: Any, partial: Sequence[Any] = ()) -> list[Any]:
        """Return the arguments of a kernel that writes the results, with `numbers` after the sizes."""
        bound = self.tensors()
        bound += [*partial, *ints(self.problem.channels, self.problem.pixels), *numbers]
        share = self.number(1 / (self.steps * self.wide))
        return [*bound, share, *(Scalar(name, self.real) for name in self.problem.scalars())]

    def whole(self, group: int) -> Launches:
        """Plan a work-group for each channel."""
        kernel = ("batchnorm_channels_forward", 1) if self.forward else ("batchnorm_channels_backward", 2)
        arguments = self.result(Constant(np.uint32(self.steps)))
        defines = {"GROUP": group, "EACH": ceil_div(self.steps, group)}
        return Launches((self.launch(WHOLE_FILE, kernel, defines, self.problem.channels, arguments, self.outputs),))

    def parts(self) -> Launches:
        """Plan work-groups for parts of channels."""
        channels, each = self.problem.channels, PART_EACH[self.problem.direction] * 4 // self.wide
        small = self.problem.dtype in SMALL and not self.planner.device.has_shuffles
        group = SMALL_PART_GROUP if small else PART_GROUP
        rounds = ceil_div(self.steps, each * group)
        wanted = ceil_div(GROUPS_PER_UNIT * self.planner.device.compute_units, channels)
        part_steps = max(1, rounds // wanted) * each * group
        parts = ceil_div(self.steps, part_steps)
        defines = {"GROUP": group, "EACH": each}
        itemsize = np.dtype(self.real).itemsize
        partial, sizes = Workspace(0, itemsize), [Constant(np.uint32(n)) for n in (self.steps, part_steps, parts)]
        bound = ("x",) if self.forward else ("x", "dy", "mean", *self.kept)
        arguments = [*(Buffer(name) for name in bound), partial, *ints(channels, self.problem.pixels), *sizes]
        if not self.forward:
            arguments += [Scalar(name, self.real) for name in self.problem.activation_scalars]
        kernels = (("batchnorm_parts_statistics", 1), ("batchnorm_parts_forward", 2))
        if not self.forward:
            kernels = (("batchnorm_parts_products", 3), ("batchnorm_parts_backward", 4))
        first = self.launch(PARTS_FILE, kernels[0], defines, channels * parts, arguments)
        arguments = self.result(*sizes, partial=(partial,))
        second = self.launch(PARTS_FILE, kernels[1], defines, channels * parts, arguments, self.outputs)
        return Launches((first, second), channels * parts * SUMS * itemsize)
