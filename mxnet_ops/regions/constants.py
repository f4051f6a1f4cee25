"""What was read of a frozen region's parameters: constants of its programs, of whatever shapes."""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clgraft import core

MOST_PROGRAMS = 4  # shapes of a frozen region that stay compiled, each with what it prepared of the constants


class Constants:
    """The parameters of a frozen region as they were read.

    A region's attributes name them by a number, which is used again later: MXNet and this package keep what they know
    of a set of attributes.

    Parameters
    ----------
    arrays : mapping of str to numpy array
        By their names in the region.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)
        try:
            self.number = _unused.pop()
        except IndexError:
            self.number = next(_numbers)
        self._sent: dict[core.Context, Mapping[str, Any]] = {}
        self._programs: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()
        _known[self.number] = self
        weakref.finalize(self, _unused.append, self.number).atexit = False

    @property
    def text(self) -> str:
        """The attribute of a region that has these constants."""
        shapes = {name: array.shape for name, array in self.arrays.items()}
        return json.dumps({"number": self.number, "shapes": shapes}, separators=(",", ":"))

    def on(self, context: core.Context) -> Mapping[str, Any]:
        """Return the arrays where the device reads them: all programs share what was sent to it."""
        if context.device.host_access != "staged":
            return self.arrays
        import pyopencl.array as device_array

        with self._lock:
            if context not in self._sent:
                self._sent[context] = {n: device_array.to_device(context.queue, a) for n, a in self.arrays.items()}
            return self._sent[context]

    def program(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the program of a key, which is made if it is not among the last ones."""
        with self._lock:
            found = self._programs.get(key)
        found = found or make()
        with self._lock:
            found = self._programs.setdefault(key, found)
            self._programs.move_to_end(key)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return found


_numbers = itertools.count(1)
_unused: list[int] = []
_known: weakref.WeakValueDictionary[int, Constants] = weakref.WeakValueDictionary()


def constants_of(number: int) -> Constants:
    """Return the constants of a number.

    Raises
    ------
    core.ProblemError
        If they are gone, or of another process.
    """
    found = _known.get(number)
    if found is None:
        raise core.ProblemError(f"[ocl_region] got constants {number}, expected those of a frozen region at work")
    return found
