"""Arrays that stay where a device reads them: in its own memory, or on the host where it uses that."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clgraft.core.errors import ExecutionError
from clgraft.core.problem import round_up

APART = 128  # elements that arrays of a block begin at multiples of


class Memory:
    """Makes arrays for a context, and moves their elements.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._staged = context.device.host_access == "staged"
        self._reads: Any = None  # a queue, made on first use

    def array(self, elements: np.ndarray) -> Any:
        """Return a new array with these elements."""
        if self._staged:
            import pyopencl.array as device_array

            return device_array.to_device(self._context.queue, np.array(elements, order="C"))
        made = self._context.empty(elements.shape, elements.dtype.name)
        made[...] = elements
        return made

    def zeros(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return a new array of zeros."""
        return self.array(np.zeros(shape, dtype))

    def elements(self, array: Any, event: Any = None) -> np.ndarray:
        """Return a copy of an array's elements, after what is queued has run, or after an event of the runtime."""
        if event is not None:
            return self._elements_after(array, event)
        self._context.finish()
        return np.array(array) if isinstance(array, np.ndarray) else array.get(self._context.queue)  # type: ignore

    def _elements_after(self, array: Any, event: Any) -> np.ndarray:
        """Return a copy of the elements of an array of the device, while that computes what is queued later."""
        import pyopencl as cl

        status = self._context.lib.clg_event_wait(event)
        if status:
            text = self._context.ffi.string(self._context.lib.clg_last_error()).decode()
            raise ExecutionError(text, status)
        if self._reads is None:
            self._reads = cl.CommandQueue(self._context.cl_context, self._context.cl_device)
        return array.get(self._reads)  # type: ignore[no-any-return]

    def change(self, array: Any, elements: np.ndarray) -> None:
        """Overwrite an array's elements."""
        self._context.finish()
        if isinstance(array, np.ndarray):
            array[...] = elements
        else:
            array.set(np.ascontiguousarray(elements), self._context.queue)
            self._context.queue.finish()

    def gather(self, arrays: Sequence[Any], flat: np.ndarray) -> None:
        """Copy the elements of several arrays, after what is queued has run, one after another into another array."""
        self._context.finish()
        for array, part in self._parts(arrays, flat):
            if isinstance(array, np.ndarray):
                part[...] = array
            else:
                array.get_async(self._context.queue, part)
        self._context.queue.finish()

    def scatter(self, flat: np.ndarray, arrays: Sequence[Any]) -> None:
        """Overwrite the elements of several arrays by those that follow one another in another array."""
        self._context.finish()
        for array, part in self._parts(arrays, flat):
            if isinstance(array, np.ndarray):
                array[...] = part
            else:
                array.set(part, self._context.queue, async_=True)
        self._context.queue.finish()

    @staticmethod
    def _parts(arrays: Sequence[Any], flat: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        start = 0
        for array in arrays:
            yield array, flat[start : start + array.size].reshape(array.shape)
            start += array.size


class Block:
    """Places for arrays one after another, and for arrays of other kinds that lie alike.

    What is computed element by element for each of the arrays, such as an optimizer's update of parameters, gradients
    and histories, can be computed for several of them at once: they are one array of each kind. Between them are zeros.

    Parameters
    ----------
    memory : Memory
    shapes : sequence of tuple of int
        Of the arrays of each kind.
    """

    def __init__(self, memory: Memory, shapes: Sequence[tuple[int, ...]]) -> None:
        self._memory, self._shapes = memory, [tuple(shape) for shape in shapes]
        self._starts = [0]
        for shape in self._shapes:
            self._starts.append(self._starts[-1] + round_up(math.prod(shape), APART))
        self._kinds: dict[tuple[str, str], Any] = {}
        self._taken: weakref.WeakValueDictionary[tuple[str, str, int], Any] = weakref.WeakValueDictionary()

    def array(self, kind: str, place: int, dtype: str = "float32") -> Any:
        """Return the array of a kind at a place, of zeros at first; None if somebody has it."""
        key = (kind, dtype, place)
        if key in self._taken:
            return None
        made = self.whole(kind, place, place, dtype)[: math.prod(self._shapes[place])].reshape(self._shapes[place])
        self._taken[key] = made
        return made

    def whole(self, kind: str, first: int, last: int, dtype: str = "float32") -> Any:
        """Return the arrays of a kind at some places, and what is between them, as one array of one axis."""
        if (kind, dtype) not in self._kinds:
            self._kinds[kind, dtype] = self._memory.zeros((self._starts[-1],), dtype)
        return self._kinds[kind, dtype][self._starts[first] : self._starts[last + 1]]
