"""Runs of plans for tuning: buffers bound once, in turn where they would stay in the cache, and times to compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clgraft.core.abi import lib
from clgraft.core.runtime.plan import BoundBuffer
from clgraft.core.tuning.database import Timing

if TYPE_CHECKING:
    from clgraft.core.problem import Argument
    from clgraft.core.runtime.plan import Plan
    from clgraft.core.session.context import Context

FRESH_BYTES = 32 * 2**20  # so many bytes have gone through the caches before a buffer is used again
MOST_COPIES = 8
LEAST_SECONDS, MOST_RUNS = 3e-4, 64  # one measurement on other devices
DEVICE_RUNS = 8  # runs between two readings of the clock, on a device with memory of its own


class Buffers:
    """A problem's arguments, in as many copies as keep a run's data out of the cache; every candidate uses the same.

    Host arrays, or buffers of the device where it has memory of its own.

    Parameters
    ----------
    arguments : sequence of Argument
    inputs : mapping of str to numpy.ndarray
        What is read; what is written begins as not a number, or for what is updated as the input.
    """

    def __init__(self, context: Context, arguments: Sequence[Argument], inputs: Mapping[str, np.ndarray]) -> None:
        self.context, self.arguments, self.inputs = context, arguments, inputs
        self.staged = context.device.host_access == "staged"
        nbytes = sum(argument.nbytes for argument in arguments)
        copies = 1 if self.staged else max(1, min(MOST_COPIES, 1 + FRESH_BYTES // max(nbytes, 1)))
        self.sets = [
            {a.name: inputs[a.name].copy() if a.name in inputs else np.empty(a.shape, a.dtype) for a in arguments}
            for _ in range(copies)
        ]
        self.on_device: dict[str, Any] = {}
        self.bound = [self._bind(arrays) for arrays in self.sets]

    def _bind(self, arrays: Mapping[str, np.ndarray]) -> list[BoundBuffer]:
        bound = []
        for argument in self.arguments:
            array = arrays[argument.name]
            address, kind = array.ctypes.data, lib.CLG_HOST
            if self.staged:
                import pyopencl as cl

                buffer = cl.Buffer(self.context.cl_context, cl.mem_flags.READ_WRITE, max(array.nbytes, 4))
                cl.enqueue_copy(self.context.queue, buffer, array)
                self.on_device[argument.name] = buffer
                address, kind = buffer.int_ptr, lib.CLG_DEVICE
            bound.append(BoundBuffer(address, array.nbytes, argument.dtype, kind=kind))
        return bound

    def poison(self) -> None:
        """Set what is written in the first copy back to where it begins."""
        for a in self.arguments:
            if a.role == "in":
                continue
            if a.name in self.inputs:
                self.sets[0][a.name][...] = self.inputs[a.name]
            else:
                self.sets[0][a.name].fill(np.nan)
            if self.staged:
                import pyopencl as cl

                cl.enqueue_copy(self.context.queue, self.on_device[a.name], self.sets[0][a.name])

    def fetch(self) -> dict[str, np.ndarray]:
        """Return what was written to the first copy."""
        outputs = {a.name: self.sets[0][a.name] for a in self.arguments if a.role != "in"}
        if self.staged:
            import pyopencl as cl

            self.context.lib.clg_context_finish(self.context.handle)
            for name, array in outputs.items():
                cl.enqueue_copy(self.context.queue, array, self.on_device[name])
        return outputs


class Runner:
    """A plan bound to buffers."""

    def __init__(self, plan: Plan, buffers: Buffers, scalars: Mapping[str, float]) -> None:
        self.plan, self.buffers = plan, buffers
        self.scalars = [float(scalars[name]) for name in plan.scalars]
        self.bound = [plan.bind(each) for each in buffers.bound]
        self.turn = 0
        self.first = 0.0  # seconds of the last run that `results` made
        self.runs = DEVICE_RUNS if buffers.staged else 0  # runs of one measurement; 0: not known yet

    def _run(self) -> None:
        bound = self.bound[self.turn]
        self.turn = (self.turn + 1) % len(self.bound)
        self.plan.run_bound(bound, self.scalars)

    def results(self) -> dict[str, np.ndarray]:
        """Run once into numbers that are none; return what was written, to be used before the next run."""
        self.buffers.poison()
        self.turn = 0
        self.first = self._time(1)
        return self.buffers.fetch()

    def seconds(self) -> float:
        """Time one run; the mean of some in a row where one is short, or the device has memory of its own."""
        if not self.runs:
            self.runs = min(1 + int(LEAST_SECONDS / max(self._time(1), 1e-7)), MOST_RUNS)
        return self._time(self.runs)

    def _time(self, runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            self._run()
        if self.buffers.staged:
            self.buffers.context.lib.clg_context_finish(self.buffers.context.handle)
        return (time.perf_counter() - start) / runs


def summary(times: Sequence[float]) -> Timing:
    """Summarise times of single runs."""
    ordered = sorted(times)
    median = statistics.median(ordered)
    quarter = len(ordered) // 4
    spread = (ordered[-1 - quarter] - ordered[quarter]) / median if median else 0.0
    return Timing(len(ordered), statistics.fmean(ordered), median, spread, ordered[0])


def in_turn(runners: Sequence[Runner], rounds: int, most_seconds: float) -> list[list[float]]:
    """Time runners in turn, each round in another order, so that drift and neighbours' caches meet all alike.

    Returns
    -------
    list of list of float
        Of every runner its time in every round; at least three rounds.
    """
    times: list[list[float]] = [[] for _ in runners]
    end = time.perf_counter() + most_seconds
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > end:
            break
        order = list(range(len(runners)))
        shift = done % len(order)
        for i in order[shift:] + order[:shift]:
            times[i].append(runners[i].seconds())
    return times
