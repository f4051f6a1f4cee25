"""Arrays at the edge of memory: a step over it ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from clgraft import core
from clgraft.core.session.context import Context
from tests.core.conv_checks import OUTPUTS, random_arrays


def guarded(array: np.ndarray, at_end: bool) -> tuple[np.ndarray, mmap.mmap]:
    """Copy an array to the end (or the beginning) of pages whose neighbours may not be touched."""
    page = mmap.PAGESIZE
    size = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for guard in (address, address + page + size):
        assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    offset = page + (size - array.nbytes if at_end else 0)
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy, memory


def check_within_pages(problem: core.ConvProblem, algorithm: str, at_end: bool, context: Context | None = None) -> None:
    """Run with every array at the end (or the beginning) of its pages; the result is that of ordinary memory."""
    output = OUTPUTS[problem.direction]
    arrays = random_arrays(problem)
    plan = (context or core.context()).plan(problem, algorithm=algorithm)
    ordinary = {argument.name: arrays[argument.name] for argument in plan.arguments if argument.role == "in"}
    ordinary[output] = np.full(plan.arguments[-1].shape, np.nan, problem.dtype)
    at_edge = {key: guarded(array, at_end)[0] for key, array in ordinary.items()}
    plan.run(**ordinary)
    plan.run(**at_edge)
    assert np.array_equal(at_edge[output], ordinary[output])
