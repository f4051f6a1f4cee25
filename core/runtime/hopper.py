"""Finds out whether kernels for Hopper's matrix units work on a device: `ptx.py` builds them in an undocumented way."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.errors import BuildError
from clgraft.core.log import log
from clgraft.core.planning.device import HOPPER
from clgraft.core.runtime import drivers, program_cache

ROWS, COLUMNS, ITEMS = 64, 64, 128  # of the product that is checked, and its work-items
DEPTH, TILES_DEPTH = 32, 64  # its depth where work-items feed one operand, and where both are read from local memory
DEFINES = {"VL": 4, "SCALAR_ITEMS": 0}

_known: dict[str, bool] = {}  # whether the units work, by the key of the program that finds out


def possible(context: Any) -> bool:
    """Return whether a device context's device has these units."""
    return bool(context.device.compute_capability == HOPPER)


def works(context: Any, from_tiles: bool = False) -> bool:
    """Return whether kernels for Hopper's matrix units work on a device context's device.

    One is built and run in an OpenCL context of its own, because a fault would end every use of the context, once for a
    device in a process. Success is noted in the program cache.

    Parameters
    ----------
    context : DeviceContext
    from_tiles : bool
        Whether the units read both operands from local memory, halves, one from the middle of a tile, as halo tiles
        need it.
    """
    defines = {**DEFINES, "EMULATED": int(not possible(context)), "FROM_TILES": int(from_tiles)}
    kernel = context.kernel("conv/gemm_gpu/check_wgmma.cl", "check_wgmma", defines)
    device = context.cl_device
    note, place = program_cache.key_of(device, kernel.source, kernel.options, what="works"), program_cache.folder()
    if note not in _known:
        if place is not None and program_cache.is_noted(place, note):
            _known[note] = True
        else:
            _known[note] = _checked(device, kernel, TILES_DEPTH if from_tiles else DEPTH)
            if _known[note] and place is not None:
                program_cache.write_note(place, note)
    return _known[note]


def _checked(cl_device: Any, kernel: Any, depth: int) -> bool:
    """Compute a product and compare it: small whole numbers are exact in TF32 and halves, so all has to be right."""
    import pyopencl as cl

    numbers = np.random.default_rng(0).integers(-9, 10, (2, ROWS * depth)).astype(np.float32)
    result = np.full((ROWS, COLUMNS), np.nan, np.float32)
    try:
        cl_context = cl.Context([cl_device])
        queue = cl.CommandQueue(cl_context)
        program = program_cache.build(cl_context, cl_device, kernel.source, kernel.options)
        built = drivers.new_kernel(program, "check_wgmma")
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(cl_context, flags, hostbuf=array) for array in (*numbers, result)]
        set_argument: Any = built.set_arg
        for position, buffer in enumerate(buffers):
            set_argument(2 * position, buffer)
            set_argument(2 * position + 1, np.uint64(0))
        cl.enqueue_nd_range_kernel(queue, built, (ITEMS,), (ITEMS,))
        cl.enqueue_copy(queue, result, buffers[2])
    except (cl.Error, BuildError) as error:
        log.debug("[kernel] %s does without wgmma: %s", cl_device.name, error)
        return False
    exact = numbers[0].reshape(ROWS, depth) @ numbers[1].reshape(depth, COLUMNS)
    if not np.array_equal(result, exact):
        log.debug("[kernel] %s does without wgmma: its results are wrong", cl_device.name)
        return False
    return True
