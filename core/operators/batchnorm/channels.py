"""Batch norm of a training step on GPUs: one launch, in which a work-group does all of a channel.

The work-group keeps its channel in registers where it fits, so memory is read once and written once; the statistics are
then those of x minus the channel's own mean. A longer channel is read again, and the shift is the mean of a sample of it
(see `generated`). Channels that are longer still, or too few of them for the device, are left to `generated`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm.generated import SAMPLE, activated_text, flow_text
from clgraft.core.operators.batchnorm.problem import KEPT, BatchNormProblem
from clgraft.core.operators.pointwise.expression import read_program
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant, Launch, Launches, Scalar, ints
from clgraft.core.problem import ceil_div

NAME = "channels"
FOR_GPUS = True  # a search on a CPU device does not try it
FILE = "batchnorm/channels.cl"
GROUPS = (256, 512, 1024)  # work-items of a work-group, the fewest that hold a channel
EACH = (1, 2, 4, 8)  # reads of a work-item that are on their way at once; forward holds at most HELD values of them
HELD = {"forward_training": 32, "backward_training": 16}
FEWEST_PIXELS = 8
LONGEST = 2**17  # elements of a channel that is read again


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch.

    Raises
    ------
    Declined
        On CPU devices, for other directions, and where channels are too long.
    """
    if planner.device.is_cpu:
        raise Declined("made for GPUs")
    if problem.direction not in HELD:
        raise Declined(f"has no {problem.direction}")
    batch, channels, pixels = problem.shape
    count = batch * pixels
    if not 0 < count <= LONGEST:
        raise Declined(f"channels of {count} elements, not of 1 to {LONGEST}")
    if pixels < FEWEST_PIXELS:
        raise Declined(f"{pixels} pixels, fewer than {FEWEST_PIXELS}, do not fill what memory hands out at once")
    wide = 4 if pixels % 4 == 0 else 1
    steps = count // wide
    groups = [group for group in GROUPS if group <= planner.device.max_work_group_size]
    if not groups:
        raise Declined(f"work-groups of {planner.device.max_work_group_size} are too small")
    most = HELD[problem.direction] // wide
    group = next((g for g in groups if g * min(4, most) >= steps), groups[-1])
    held = group * most >= steps
    each = next((e for e in EACH if e * group >= steps), EACH[-1]) if held else 4
    defines: dict[str, Any] = {"GROUP": group, "EACH": each, "WIDE": wide, **({"HELD": 1} if held else {})}
    real = "float64" if problem.dtype == "float64" else "float32"
    number = np.dtype(real).type
    if problem.activation:
        defines["SCALARS(F)"] = " ".join(f"F({name})" for name in problem.activation_scalars)
    if problem.direction == "forward_training":
        sampled = steps if held else ceil_div(steps, SAMPLE)
        shares = (Constant(number(1 / (sampled * wide))), Constant(number(1 / count)))
        name, outputs = "batchnorm_channels_forward", ("y", "mean", "var")
        numbers: tuple[Any, ...] = (Constant(np.uint32(steps)), Constant(np.uint32(sampled)), *shares)
        inputs = [Buffer(name) for name in ("x", "gamma", "beta")]
        if problem.activation:
            outputs += tuple(KEPT.split())
            text = f"{activated_text(problem.activation, 'x0')} y0 = y;"
            defines["ACTIVATE"] = read_program(text, 1, problem.activation_scalars).c_text((0,))
    else:
        name, outputs = "batchnorm_channels_backward", ("dx", "dgamma", "dbeta")
        numbers = (Constant(np.uint32(steps)), Constant(number(1 / count)))
        inputs = [Buffer(name) for name in ("x", "dy", "gamma", "mean", "var")]
        if problem.activation:
            inputs += [Buffer(name) for name in KEPT.split()]
            text, flow = flow_text(problem.activation, "x1")
            text = f"real dy = x0; {text}y0 = {flow};"
            defines["FLOW"] = read_program(text, 2, problem.activation_scalars).c_text((0,))
        defines["MAKES"] = 2
    written = [argument for output in outputs for argument in (Buffer(output), Accumulate(output))]
    scalars = [Scalar(name, real) for name in problem.scalars()]
    arguments = (*inputs, *written, *ints(channels, pixels), *numbers, *scalars)
    kernel = planner.kernel(FILE, name, defines, problem.dtype)
    return Launches((Launch(kernel, (channels * group,), (group,), arguments, outputs),))
