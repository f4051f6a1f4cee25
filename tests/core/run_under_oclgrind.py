"""What `test_oclgrind` runs inside of Oclgrind: `run_under_oclgrind.py plant` or `... SET EVERY TURN`."""

from __future__ import annotations

import sys

import numpy as np

from clgraft import core
from tests.core.every_run import arrays, plans, run

LARGEST = 4000  # elements: a simulator takes its time

PLANT = """
kernel void race(global int *x) { x[0] = (int)get_global_id(0); }
kernel void beyond(global int *x) { x[get_global_id(0) + 1] = 1; }
"""


def plant() -> None:
    """Run two kernels that are wrong."""
    import pyopencl as cl

    context = core.context()
    program = cl.Program(context.cl_context, PLANT).build()
    buffer = cl.Buffer(context.cl_context, cl.mem_flags.READ_WRITE, 64)
    program.race(context.queue, (16,), (4,), buffer)
    program.beyond(context.queue, (16,), (4,), buffer)
    context.queue.finish()


def main(words: list[str]) -> None:
    assert core.context().device.platform == "Oclgrind"
    if words == ["plant"]:
        return plant()
    count = 0
    for plan in plans([words[0]], LARGEST, *map(int, words[1:])):
        print("run:", plan, file=sys.stderr, flush=True)
        run(plan, arrays(plan, np.random.default_rng(count)))
        count += 1
    print(f"{count} runs")


if __name__ == "__main__":
    main(sys.argv[1:])
