"""Batch norm of a training step on CPU devices in one launch: a work-item does everything for a run of channels.

Caches hold a channel between its sums and its result, so memory is read once and written once. The shift that keeps
digits where the mean is large comes from a sample, as in `generated`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import Declined
from clgraft.core.operators.batchnorm.generated import sample_size
from clgraft.core.operators.batchnorm.problem import BatchNormProblem
from clgraft.core.operators.batchnorm.training_kernels import TrainingKernels
from clgraft.core.operators.pointwise.generate import rows_past_caches
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Constant, Launch, Launches, Scalar, ints
from clgraft.core.problem import ceil_div

NAME = "channels_cpu"

KERNELS = {"forward_training": 1, "backward_training": 2}
ITEMS_PER_UNIT = 8  # work-items per core, so that no core waits long for the last one
ITEM_ELEMENTS = 8192  # fewer are not worth a work-item's start
CHANNELS_PER_UNIT = 2  # with fewer for each core, cores would wait
WAITED_ELEMENTS = 16384  # elements of a channel up to which waiting costs less than launches of loops that share it
CHANNEL_BYTES = 2**20  # bytes of a channel, about what a core's own cache holds


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan one launch over runs of channels.

    Raises
    ------
    Declined
        On other devices, for other directions, for rows shorter than vectors, for channels that caches do not hold,
        and for few channels where cores could share them.
    """
    device = planner.device
    if not device.is_cpu:
        raise Declined("is for CPU devices")
    if problem.direction not in KERNELS:
        raise Declined(f"has no {problem.direction}")
    if problem.pixels < 2 or not problem.batch:
        raise Declined(f"got {problem.batch} rows of {problem.pixels} elements, expected at least 2")
    wide = problem.dtype == "float64"
    of_channel = problem.batch * problem.pixels
    if of_channel * (8 if wide else 4) > CHANNEL_BYTES:
        raise Declined(f"a channel of {of_channel} elements does not stay in a core's cache")
    if problem.channels < CHANNELS_PER_UNIT * device.compute_units and of_channel > WAITED_ELEMENTS:
        raise Declined(f"{problem.channels} channels of {of_channel} elements leave cores idle")
    kernels = TrainingKernels(problem, planner)
    lanes = max(2, device.vector_width // (2 if wide else 1))
    defines: dict[str, Any] = {
        **kernels.defines,
        "MAKES": KERNELS[problem.direction],
        "VL": min(lanes, 1 << (problem.pixels.bit_length() - 1)),
    }
    elements = problem.channels * of_channel
    defines |= rows_past_caches(planner, elements * np.dtype(problem.dtype).itemsize, problem.pixels, defines["VL"])
    items = max(1, min(device.compute_units * ITEMS_PER_UNIT, elements // ITEM_ELEMENTS))
    item_channels = ceil_div(problem.channels, items)
    numbers: list[Any] = [*ints(problem.channels, problem.batch, item_channels)]
    shares = [kernels.number(1 / of_channel)]
    sizes = [problem.pixels]
    if kernels.forward:
        images, part = sample_size(problem)
        numbers += ints(images)
        sizes.append(part)
        shares.append(kernels.number(1 / (images * part)))
    numbers += [Constant(np.int64(size)) for size in sizes]
    scalars = [Scalar(name, kernels.real) for name in problem.scalars()]
    way = "forward" if kernels.forward else "backward"
    kernel = planner.kernel("batchnorm/channels_cpu.cl", f"batchnorm_channels_cpu_{way}", defines, problem.dtype)
    arguments = (*kernels.tensors(), *numbers, *shares, *scalars)
    groups = ceil_div(problem.channels, item_channels)
    return Launches((Launch(kernel, (groups,), (1,), arguments, kernels.outputs),))
