"""A loop in C that enqueues kernels whose arguments are set: what a driver alone needs for its launches."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cffi

# The driver's table of functions stands at the start of a queue, as the loader's specification has it.
SOURCE = """
#include <stdint.h>
#include <stddef.h>
typedef int32_t (*launch_fn)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,
                             const void *, void *);
typedef int32_t (*finish_fn)(void *);
int32_t enqueue_all(void *queue, int32_t wait, uint32_t times, uint32_t count, void **kernels, const uint32_t *axes,
                    const size_t *global, const size_t *local) {
    void **table = *(void ***)queue;
    int32_t failed = 0;
    for (uint32_t t = 0; t < times; t++)
        for (uint32_t i = 0; i < count; i++)
            failed |= ((launch_fn)table[59])(queue, kernels[i], axes[i], NULL, global + 3 * i,
                                             local[3 * i] ? local + 3 * i : NULL, 0, NULL, NULL);
    return failed | (wait ? ((finish_fn)table[47])(queue) : 0);
}
"""
DECLARATION = """
int32_t enqueue_all(void *, int32_t, uint32_t, uint32_t, void **, const uint32_t *, const size_t *, const size_t *);
"""


@cache
def _library() -> tuple[Any, Any]:
    ffi = cffi.FFI()
    ffi.cdef(DECLARATION)
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(SOURCE)
    command = ["cc", "-O2", "-shared", "-fPIC", str(folder / "loop.c"), "-o", str(folder / "loop.so")]
    subprocess.run(command, check=True)
    return ffi, ffi.dlopen(str(folder / "loop.so"))


class LaunchLoop:
    """Launches in a row on a queue.

    Parameters
    ----------
    queue : pyopencl.CommandQueue
    launches : sequence of tuple
        Of each: the pyopencl kernel with its arguments set, the global size, and the local one or None.
    """

    def __init__(self, queue: Any, launches: Sequence[tuple[Any, Sequence[int], Sequence[int] | None]]) -> None:
        ffi, self._library = _library()
        self._kept = queue, launches
        self._queue = ffi.cast("void *", queue.int_ptr)
        self._count = len(launches)
        self._kernels = ffi.new("void *[]", [ffi.cast("void *", kernel.int_ptr) for kernel, _, _ in launches])
        self._axes = ffi.new("uint32_t[]", [len(size) for _, size, _ in launches])
        self._global = ffi.new("size_t[]", [n for _, size, _ in launches for n in (*size, 1, 1)[:3]])
        self._local = ffi.new("size_t[]", [n for _, _, size in launches for n in (*(size or ()), 0, 0, 0)[:3]])

    def run(self, times: int = 1, wait: bool = True) -> None:
        """Enqueue everything so many times, and wait for its end."""
        arguments = (self._count, self._kernels, self._axes, self._global, self._local)
        if self._library.enqueue_all(self._queue, wait, times, *arguments):
            raise RuntimeError("a launch failed")
