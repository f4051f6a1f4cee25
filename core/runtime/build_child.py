"""A child process of build_processes.py: it builds programs into the cache, or launches kernels once, on zeros.

It is run as a script that imports nothing of clgraft before it has to, so that it starts fast. The argument names a
device. It writes a line when it is free, and reads tasks, one line of JSON each, until there are no more. A task with
arguments is a launch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import pyopencl as cl

PAGE = 4096
NO_TICKETS = 2**30  # what a counter of tickets holds when all items are taken (kernels/common/tickets.cl)


def device_of(platform_name: str, version: str, number: int) -> Any:
    """Return the device that the parent process uses: the platform's one of a number."""
    return next(
        platform.get_devices()[number]
        for platform in cl.get_platforms()
        if (platform.name, platform.version) == (platform_name, version)
    )


def build(context: Any, device: Any, task: dict[str, Any]) -> None:
    """Leave a task's program in the program cache."""
    from clgraft.core.runtime import program_cache

    program_cache.build(context, device, task["source"], tuple(task["options"]))


def launch(context: Any, queue: Any, task: dict[str, Any]) -> None:
    """Build a task's kernel and run it to its end, with one work-group where the task has a size of work-groups."""
    no_cache: Any = False  # pyopencl's own
    program = cl.Program(context, task["source"]).build(options=task["options"], cache_dir=no_cache)
    kernel = cl.Kernel(program, task["name"])
    set_argument: Any = kernel.set_arg
    position, keep = 0, list[Any]()
    for kind, what in task["arguments"]:
        if kind == "memory":
            pages = np.zeros(what + 2 * PAGE, np.uint8)  # those that nobody touches take no memory
            array = pages[-pages.ctypes.data % PAGE :]
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            keep += [array, cl.Buffer(context, flags, hostbuf=array)]
            set_argument(position, keep[-1])
            set_argument(position + 1, np.uint64(0))
            position += 2
        elif kind == "tickets":
            keep.append(cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.full(1, NO_TICKETS, np.int32)))
            set_argument(position, keep[-1])
            position += 1
        else:
            set_argument(position, cl.LocalMemory(what) if kind == "local" else bytes.fromhex(what))
            position += 1
    cl.enqueue_nd_range_kernel(queue, kernel, task["global"], task["local"])
    queue.finish()


def main() -> None:
    """Do tasks until there are no more. One that fails is left to the parent process."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what drivers print goes to stderr
    device = device_of(*json.loads(sys.argv[2]))
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    context = cl.Context([device])  # not a queue's own: drivers may not give that back
    queue = cl.CommandQueue(context)
    print("ready", file=channel, flush=True)
    for line in sys.stdin:
        if processors:  # drivers pin a thread that calls them, in all children to the same processor
            os.sched_setaffinity(0, processors)
        try:
            task = json.loads(line)
            if "arguments" in task:
                launch(context, queue, task)
            else:
                build(context, device, task)
        except Exception as error:
            print(error, file=sys.stderr)
        print("done", file=channel, flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # drivers take their time to end
