"""The parameters of a model that is trained: arrays of a device that its session and its trainers share."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from clgraft.core.errors import hint
from clgraft.core.model.errors import ModelError
from clgraft.core.model.lowered import Net
from clgraft.core.model.memory import Memory


class Store:
    """Parameters by their names, each in the type in which graphs read it.

    Parameters
    ----------
    net : Net
    context : Context
    """

    def __init__(self, net: Net, context: Any) -> None:
        self._net, self._memory = net, Memory(context)
        self._arrays: dict[str, Any] = {}
        self._lock = threading.Lock()

    def add(self, net: Net) -> None:
        """Take the parameters of another form of the net, which may have more of them."""
        self._net = net

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(self._net.parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._net.parameters

    def __getitem__(self, name: str) -> Any:
        with self._lock:
            if name not in self._arrays:
                self._arrays[name] = self._memory.array(self._net.array(name))
            return self._arrays[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape."""
        return tuple(self._net.parameters[name].shape)

    def elements(self, name: str) -> np.ndarray:
        """Return a copy of a parameter."""
        return self._memory.elements(self[name])

    def all(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters."""
        return {name: self.elements(name) for name in self._net.parameters}

    def change(self, name: str, elements: Any) -> None:
        """Overwrite a parameter.

        Raises
        ------
        ModelError
            If there is none of that name, or its shape is another one.
        """
        if name not in self:
            known = list(self._net.parameters)
            raise ModelError(
                f"[{self._net.kind}] got parameter {name!r}, expected one of the model's{hint(name, known)}"
            )
        array = self[name]
        found = np.asarray(elements, array.dtype)
        if found.shape != tuple(array.shape):
            raise ModelError(f"[{self._net.kind}] got shape {found.shape} for {name!r}, expected {tuple(array.shape)}")
        self._memory.change(array, found)
