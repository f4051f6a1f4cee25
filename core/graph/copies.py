"""Copies of host arrays that stay on the device, so that inputs that did not change are not sent again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from clgraft.core.errors import ArgumentError
from clgraft.core.problem import Argument
from clgraft.core.runtime import arrays

LARGEST_VERSION = 2**64 - 1


class Owner(Protocol):
    """What copies need of their context."""

    ffi: Any
    lib: Any
    handle: Any
    lifetime: Any


class Copies:
    """Copies of inputs on a context's device, by the inputs' names.

    They hold what the versions of the last runs say (see `CompiledGraph.run`). Graphs whose inputs of the same name
    are the same arrays may share one: what the forward pass sent is there for the backward pass. A copy is made where
    an input first has a version, and the memory is given back when this object goes. On devices that use host memory
    in place nothing is kept.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Owner) -> None:
        self._lifetime = context.lifetime  # not the context: it may hold what holds this
        self._handle, self._lib, self._ffi = context.handle, context.lib, context.ffi
        self._arrays: dict[str, tuple[int, Any]] = {}
        self._bound: dict[int, tuple[tuple[Argument, ...], dict[str, int], Any]] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory of all copies."""
        return sum(nbytes for nbytes, _ in self._arrays.values())

    def _array(self, name: str, nbytes: int) -> Any:
        with self._lock:
            known = self._arrays.get(name)
            if known is None:
                known = nbytes, arrays.handle(self._ffi, self._lib, self._handle, nbytes, self)
                self._arrays[name] = known
        if known[0] != nbytes:
            raise ArgumentError(f"[graph] got {name} of {nbytes} bytes, expected {known[0]}: its copy is of that size")
        return known[1]

    def bind(self, arguments: tuple[Argument, ...], versions: Mapping[str, int]) -> Any:
        """Return copies for a run, in the C runtime's form. What was returned before is never changed.

        Parameters
        ----------
        arguments : tuple of Argument
            Of the plan that runs.
        versions : mapping of str to int
            Of inputs in host memory.
        """
        _, known, bound = self._bound.get(id(arguments), (arguments, None, None))
        if known == versions:
            return bound
        fresh = self._ffi.new("clg_copy[]", len(arguments))
        if bound is not None and known is not None and known.keys() == versions.keys():
            self._ffi.memmove(fresh, bound, self._ffi.sizeof(bound))
            for i, argument in enumerate(arguments):
                if argument.name in versions:
                    fresh[i].version = versions[argument.name]
        else:
            for i, argument in enumerate(arguments):
                version = versions.get(argument.name)
                if version is not None and argument.nbytes:
                    fresh[i].array, fresh[i].version = self._array(argument.name, argument.nbytes), version
        self._bound[id(arguments)] = (arguments, dict(versions), fresh)
        return fresh


def expect_versions(versions: Mapping[str, int], inputs: Iterable[str]) -> None:
    """Raise `ArgumentError` unless each version is a number from 0 on and belongs to an input."""
    known = set(inputs)
    for name, version in versions.items():
        if name not in known:
            raise ArgumentError(f"[graph] got a version of {name!r}, expected one of the inputs {sorted(known)}")
        if not isinstance(version, int) or not 0 <= version <= LARGEST_VERSION:
            raise ArgumentError(f"[graph] got version {version!r} of {name}, expected an int from 0 to 2**64 - 1")
