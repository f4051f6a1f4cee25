"""What regions hold under a number, because MXNet passes attributes as text: arrays, and programs for their shapes."""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clgraft import core

MOST_PROGRAMS = 4  # shapes of such a region that stay compiled


class Held:
    """Arrays that are none of a region's inputs.

    A region's attributes name them by a number, which is used again later: MXNet and this package keep what they know
    of a set of attributes.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        By their names in the region.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        try:
            self.number = _unused.pop()
        except IndexError:
            self.number = next(_numbers)
        self._programs: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()
        _known[self.number] = self
        weakref.finalize(self, _unused.append, self.number).atexit = False

    @property
    def text(self) -> str:
        """The attribute of a region that has these arrays."""
        return json.dumps({"number": self.number, "shapes": self._shapes}, separators=(",", ":"))

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
_known: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()
Kind = TypeVar("Kind", bound=Held)


def held_as(kind: type[Kind], number: int, what: str) -> Kind:
    """Return what a number stands for.

    Raises
    ------
    core.ProblemError
        If it is gone, or of another process.
    """
    found = _known.get(number)
    if not isinstance(found, kind):
        raise core.ProblemError(f"[ocl_region] got {what} {number}, expected those of a region at work")
    return found
