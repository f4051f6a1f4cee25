"""Two settings of OpenMP around the import of MXNet, for clgraft's kernels and for other libraries of the process.

GCC's OpenMP library, which MXNet uses, lets the threads of a finished loop wait actively for 300 000 rounds: 14 ms on
processors whose pause takes 140 cycles. A kernel that starts in that time shares every core with them. Without
any waiting, though, MXNet's own operators would have to wake their threads one by one. The library reads the variable
when it is loaded, so this module has to be imported before MXNet.

When MXNet is loaded it sets OpenMP's number of threads of the calling thread to half of the processors, unless
OMP_NUM_THREADS is set. PyTorch and others in the process, which share the library, would run with that. MXNet does not
need it: the threads of its engine set numbers of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Iterator

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# 20000 rounds are 0.3 to 1 ms, longer than the pauses between MXNet's own operators: 1000 make these 1.4 times slower.
# With many threads fewer: what all of them wait after each operator is processor time of a training step on a GPU.
ROUNDS, OF_ALL = 20000, 80000
MAPS = "/proc/self/maps"
LIBRARIES = re.compile(r"/[^\n]*/lib(?:gomp|omp|iomp5)\b[^/\n]*\.so[^/\n]*")


def let_threads_sleep() -> None:
    """Set the number of rounds, unless the user has chosen how OpenMP's threads wait."""
    if not any(name in os.environ for name in VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = str(rounds(os.cpu_count() or 1))


def rounds(processors: int) -> int:
    """Return for how many rounds each thread waits actively, where there is one for each processor."""
    return min(ROUNDS, OF_ALL // processors)


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Restore OpenMP's number of threads of the calling thread: as it was, or a library's default if it is loaded here.

    Each OpenMP library has a number for each thread, and a default for new threads, which MXNet leaves alone.
    """
    before = {path: library.omp_get_max_threads() for path, library in _libraries().items()}
    try:
        yield
    finally:
        for path, library in _libraries().items():
            library.omp_set_num_threads(before[path] if path in before else _default(library))


def _libraries() -> dict[str, ctypes.CDLL]:
    """Return the OpenMP libraries that the process has loaded, by path."""
    try:
        with open(MAPS) as file:
            paths = dict.fromkeys(LIBRARIES.findall(file.read()))
    except OSError:
        return {}
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):  # a file that was replaced since
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if hasattr(library, "omp_set_num_threads"):
                found[path] = library
    return found


def _default(library: ctypes.CDLL) -> int:
    """Return the number of threads that a new thread gets."""
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(library.omp_get_max_threads()))
    reader.start()
    reader.join()
    return found[0]


let_threads_sleep()
