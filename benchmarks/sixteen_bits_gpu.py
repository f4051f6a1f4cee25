"""Compare types of 16 bits with float32 on a GPU: `python benchmarks/sixteen_bits_gpu.py classic --batch 64`.

Only the device is timed, without copies to the host: the launches of one problem in each type, in turns. Every line has
the time in float32, and of each type of 16 bits its time, float32's time over it, and the share of the device's copy
speed that it reaches, of all arguments counted once. `--unknown` plans as for a GPU of which nothing is known: no
matrix units, no shuffles, no work-groups that meet. Sets are those of `clgraft tune`, in all directions, `elements`,
`copies`, `dense` and `softmax`; without any, all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyopencl as cl
from device_run import DeviceRun
from progress import announced, say
from timing import geometric_mean, in_type, keep, row

from clgraft import core
from clgraft.core.planning.launches import Launches
from clgraft.core.problem import SMALL, expect_in_numpy
from clgraft.core.session.context import Context
from clgraft.core.tuning import problem_sets

SETS = ("classic", "depthwise", "norms", "poolings")
DIRECTIONS = {
    "conv": ("forward", "backward_data", "backward_filter"),
    "batchnorm": ("forward_training", "backward_training"),
    "pool": ("forward", "backward"),
}
PEER = "float32"
UNKNOWN = {
    "device_class": "gpu",
    "compute_capability": 0,
    "matrix_units": (),
    "splits_float32": False,
    "has_shuffles": False,
    "runs_groups_at_once": False,
    "registers": 0,
    "largest_local_memory": 0,
    "has_wgmma": False,
    "halves": (),
}
NORMAL = 2**20  # random numbers, which arrays repeat
COPY_BYTES = 2**29
ROUNDS = 5
TOGETHER = 24  # problems whose programs are built at once, in all types


class Case(NamedTuple):
    """A problem in float32, as text whose second word may be a type."""

    set_name: str
    name: str
    text: str


def cases(sets: Sequence[str], batch: int) -> Iterator[Case]:
    """Yield the problems of some sets, or of all of them, with so many images."""
    for name in sets or (*SETS, *OTHERS):
        if name in OTHERS:
            for text in OTHERS[name](batch):
                yield Case(name, text, text)
            continue
        for label, text in problem_sets.lines(name).items():
            kind = text.split()[0]
            for direction in DIRECTIONS[kind]:
                problem = replace(core.parse(text), batch=batch).with_direction(direction)
                yield Case(name, f"{label} {direction}", str(problem))


def elements(batch: int) -> Iterator[str]:
    """Yield elementwise functions and reductions of tensors that caches do not hold, and of some that they do."""
    for size in (f"{batch},256,56,56", f"{batch},64,14,14", f"{batch},512,7,7"):
        yield f"pointwise x0[{size}] : y0 = x0 > 0 ? x0 : 0"
        yield f"pointwise x0[{size}] x1[{size}] : y0 = x0 > 0 ? x1 : 0"
        yield f"pointwise x0[{size}] x1[{size}] : y0 = x0 + x1"
    yield f"pointwise x0[{batch},256,56,56] x1[256,1,1] x2[256,1,1] : y0 = x0 * x1 + x2"
    yield f"pointwise x0[{batch},2048,7,7] x1[2048,1,1] : y0 = x0 * x1"
    for size, axes in ((f"{batch},256,56,56", "0,2,3"), (f"{batch},2048,7,7", "2,3"), ("65536,256", "1")):
        yield f"pointwise x0[{size}] y0=sum[{axes}] : y0 = x0"
    yield f"dropout forward x[{batch},256,56,56]"


def copies(batch: int) -> Iterator[str]:
    """Yield concatenations, slices, transpositions and paddings."""
    yield f"concat forward outer[{batch}] extents[128,128] inner[3136]"
    yield f"concat forward outer[{batch}] extents[384,384,128,128] inner[49]"
    yield f"slice forward x[{batch},256,56,56] y[{batch},128,56,56] at[0,64,0,0]"
    yield f"slice forward x[{batch},56,56,256] y[{batch},56,56,96] at[0,0,0,32]"
    yield f"transpose x[{batch},256,56,56] axes[0,2,3,1]"
    yield f"transpose x[{batch},56,56,256] axes[0,3,1,2]"
    yield f"pad forward edge x[{batch},64,56,56] before[0,0,1,1] behind[0,0,1,1]"
    yield f"repeat x[{batch},64,28,28] times[1,1,2,2]"
    yield f"interpolate forward linear n{batch} c64 ih56 iw56 oh112 ow112"


def dense(batch: int) -> Iterator[str]:
    """Yield layers of classifiers, in all directions."""
    for inputs, outputs in ((4096, 4096), (2048, 1000)):
        for direction in ("forward", "backward_data", "backward_weight"):
            yield f"dense {direction} n{batch} i{inputs} o{outputs}"
    yield "dense backward_weight n8 i4096 o4096"


def softmax(batch: int) -> Iterator[str]:
    """Yield rows of classes and of attention, and the classes of pixels."""
    for size in (f"n{batch} c1000 s1", f"n{64 * batch} c1000 s1", f"n{max(1, batch // 16)} c21 s62500"):
        for direction in ("forward", "backward"):
            yield f"softmax {direction} {size}"


OTHERS = {"elements": elements, "copies": copies, "dense": dense, "softmax": softmax}


def open_device(selector: str, unknown: bool) -> Context:
    """Return a context of its own, which knows nothing of its GPU if that is asked for."""
    context = Context.on(selector)
    if unknown:
        context.device = replace(context.device, **UNKNOWN)
        context.advisor = lambda problem, context: None  # measured choices are those of a device with a name
    return context


def arrays(problem: core.Problem, numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return values of all inputs: random numbers, positive ones for a variance, again and again."""
    found = {}
    for argument in problem.arguments():
        if argument.role == "in":
            values = numbers.get(argument.dtype)
            values = np.arange(4, dtype=argument.dtype) if values is None else values
            found[argument.name] = np.resize(np.abs(values) if argument.name == "var" else values, argument.shape)
    return found


def copy_speed(context: Context) -> float:
    """Return the bytes that a copy in the device's memory reads and writes in a second."""
    profiling = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(context.cl_context, context.cl_device, properties=profiling)
    source, target = (cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, COPY_BYTES) for _ in range(2))
    cl.enqueue_fill_buffer(queue, source, np.float32(1), 0, COPY_BYTES)
    events = [cl.enqueue_copy(queue, target, source) for _ in range(12)]
    queue.finish()
    return 2e9 * COPY_BYTES / statistics.median(event.profile.end - event.profile.start for event in events[2:])


def times_of(
    context: Context, planned: Mapping[core.Problem, Launches], numbers: Mapping[str, np.ndarray]
) -> tuple[float, ...]:
    """Return the milliseconds of problems, of which each runs in turn."""
    runs = []
    for problem, launches in planned.items():
        scalars = problem.trial_scalars()
        runs.append(DeviceRun(context, problem, arrays(problem, numbers), scalars, launches))
    counts = [run.enough() for run in runs]
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, count, values in zip(runs, counts, found):
            values.append(run.milliseconds(count))
    return tuple(statistics.median(values[1:]) for values in found)


def chunks(found: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Yield the cases in pieces."""
    for first in range(0, len(found), TOGETHER):
        yield found[first : first + TOGETHER]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help=f"of {', '.join((*SETS, *OTHERS))} and others of clgraft tune")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="gpu", help="as CLGRAFT_DEVICE")
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--types", nargs="+", choices=SMALL, default=SMALL)
    parser.add_argument("--unknown", action="store_true", help="plan as for a GPU of which nothing is known")
    parser.add_argument("--json", default="", metavar="FILE", help="keep the figures")
    options = parser.parse_args()
    context = open_device(options.device, options.unknown)
    speed = copy_speed(context)
    about = "unknown GPU, " if options.unknown else ""
    print(f"device: {context.device.name}; {about}copy {speed / 1e12:.2f} TB/s")
    print(f"us in float32; {' / '.join(options.types)}: us, float32's time over it, share of the copy's speed")
    normal = np.random.default_rng(0).standard_normal(NORMAL, np.float32)
    dtypes = [PEER, *options.types]
    for dtype in dtypes:
        expect_in_numpy("types", dtype)
    numbers = {dtype: normal.astype(dtype) for dtype in dtypes}
    wanted = [case for case in cases(options.sets, options.batch) if options.only in case.name]
    ratios: dict[tuple[str, str], list[float]] = {}
    slower, rows = [], []
    for piece in announced(list(chunks(wanted)), lambda piece: f"{piece[0].name} and what follows"):
        began = time.perf_counter()
        planned = {}
        for case in piece:
            problems = [in_type(case.text, dtype) for dtype in dtypes]
            planned[case] = {problem: context.choose(problem) for problem in problems}
        context.build(*(chosen.launches for plans in planned.values() for chosen in plans.values()))
        say(f"{len(piece)} problems, built in {time.perf_counter() - began:.1f} s")
        for case, plans in planned.items():
            launches = {problem: chosen.launches for problem, chosen in plans.items()}
            try:
                native, *ours = times_of(context, launches, numbers)
            except (core.ClgraftError, cl.Error) as error:
                print(f"{case.set_name:10} {case.name:62} {str(error)[:300]}", flush=True)
                continue
            names = dict.fromkeys(chosen.algorithm for chosen in plans.values())
            line = f"{case.set_name:10} {case.name:62} {1e3 * native:9.1f}"
            for dtype, problem, took in zip(options.types, list(plans)[1:], ours):
                nbytes = sum(argument.nbytes for argument in problem.arguments())
                line += f" | {1e3 * took:9.1f} {native / took:5.2f}x {nbytes / took / speed * 1e5:4.0f} %"
                ratios.setdefault((case.set_name, dtype), []).append(native / took)
                if took > native:
                    slower.append((native / took, dtype, case.name))
                direction = getattr(problem, "direction", "forward")
                seconds = 1e-3 * native, 1e-3 * took
                rows.append(row(f"{case.set_name} {dtype}", case.name, direction, PEER, *seconds, nbytes=float(nbytes)))
            print(f"{line} | {', '.join(names)}", flush=True)
    for (set_name, dtype), values in ratios.items():
        print(f"{set_name:10} {dtype:9} geometric mean {geometric_mean(values):.2f}x, worst {min(values):.2f}x")
    for ratio, dtype, name in sorted(slower):
        print(f"slower: {ratio:.2f}x {dtype} {name}")
    keep(options.json, context, rows, {PEER: f"clgraft in {PEER}"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
