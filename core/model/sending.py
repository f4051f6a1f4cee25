"""Batches that travel to a device with memory of its own while it computes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

ALIGNMENT = 256  # bytes between arrays in pinned memory


class Landing:
    """Memory for the arrays of one batch: pinned memory of the host, and arrays of the device.

    Parameters
    ----------
    context : Context
    shapes : mapping of str to (tuple of int, str)
        Shapes and dtypes by name.
    """

    def __init__(self, context: Any, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        import pyopencl as cl
        import pyopencl.array as device_array

        places, size = {}, 0
        for name, (shape, dtype) in shapes.items():
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            places[name], size = (size, nbytes), size + -(-nbytes // ALIGNMENT) * ALIGNMENT
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        self._buffer = cl.Buffer(context.cl_context, flags, max(1, size))
        access: Any = cl.map_flags.READ | cl.map_flags.WRITE
        mapped: Any = cl.enqueue_map_buffer(
            context.queue,
            self._buffer,
            access,
            0,
            (max(1, size),),
            np.dtype(np.uint8),  # type: ignore[type-var]
        )[0]
        self._pinned = {
            name: mapped[start : start + nbytes].view(shapes[name][1]).reshape(shapes[name][0])
            for name, (start, nbytes) in places.items()
        }
        self.arrays = {name: device_array.empty(context.queue, shape, dtype) for name, (shape, dtype) in shapes.items()}

    def send(self, queue: Any, arrays: Mapping[str, np.ndarray]) -> Any:
        """Begin to send arrays, and return the event of the last transfer, or None without any."""
        import pyopencl as cl

        event = None
        for name, array in arrays.items():
            if array.size:
                np.copyto(self._pinned[name], array)
                memory: Any = self.arrays[name].base_data
                event = cl.enqueue_copy(queue, memory, self._pinned[name], is_blocking=False)
        queue.flush()
        return event


class Sent:
    """A batch on its way to the device, which one step takes. Made by `Trainer.send`.

    Attributes
    ----------
    arrays : mapping of str to numpy.ndarray
        What was sent; it must not change before a step has taken the batch.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], landing: Landing | None, event: Future[Any] | None) -> None:
        self.arrays = arrays
        self.landing, self.event, self.is_taken = landing, event, False


class Sender:
    """Sends batches by a thread and a queue of its own.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Any) -> None:
        self._context, self._staged = context, context.device.host_access == "staged"
        self._thread: ThreadPoolExecutor | None = None
        self._queue: Any = None
        self._free: dict[Any, list[Landing]] = {}
        self._lock = threading.Lock()

    def send(self, arrays: Mapping[str, np.ndarray]) -> Sent:
        """Begin to send arrays."""
        if not self._staged:
            return Sent(arrays, None, None)
        shapes = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
        with self._lock:
            if self._thread is None:
                import pyopencl as cl

                self._thread = ThreadPoolExecutor(1, "clgraft-send")
                self._queue = cl.CommandQueue(self._context.cl_context, self._context.cl_device)
            key = tuple(shapes.items())
            if key not in self._free:
                self._free = {key: []}  # the memory of other shapes is not kept
            landing = self._free[key].pop() if self._free[key] else None
        landing = landing or Landing(self._context, shapes)
        return Sent(arrays, landing, self._thread.submit(landing.send, self._queue, arrays))

    def take(self, sent: Sent) -> Mapping[str, Any]:
        """Have the context's queue wait for a batch, and return where its arrays are."""
        import pyopencl as cl

        sent.is_taken = True
        if sent.landing is None or sent.event is None:
            return sent.arrays
        event = sent.event.result()
        if event is not None:
            cl.enqueue_barrier(self._context.queue, [event])
        return sent.landing.arrays

    def give_back(self, sent: Sent) -> None:
        """Keep the memory of a batch whose step has ended for others."""
        if sent.landing is not None:
            with self._lock:
                shapes = {name: (array.shape, array.dtype.name) for name, array in sent.arrays.items()}
                self._free.get(tuple(shapes.items()), []).append(sent.landing)
