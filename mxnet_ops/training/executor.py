"""Executors that run with residents: a second one for a copy of the symbol, whose regions have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from clgraft import core
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.engine.residents import HALF, Home, Resident
from clgraft.mxnet_ops.frozen.inference import FrozenExecutor
from clgraft.mxnet_ops.training.resident_graph import STILL, read_by_regions, with_residents

MOST_SHAPES = 4  # of an executor: others that it was reshaped to and that stay bound


class Stay:
    """The residents of an executor's parameters, gradients and auxiliary states.

    Parameters
    ----------
    executor : Executor
    names : iterable of str
        Variables that may be residents; those that regions alone read become some.
    requests : mapping of str to str
        How gradients are written.

    Attributes
    ----------
    residents : dict of str to Resident
    left : str
        Why all of them are in the host's memory again, if they are.
    """

    def __init__(self, executor: Any, names: Iterable[str], requests: Mapping[str, str]) -> None:
        graph = json.loads(executor._symbol.tojson())
        arrays, readable = {**executor.arg_dict, **executor.aux_dict}, read_by_regions(graph)
        self.home, self.left = Home(core.context(), executor._ctx), ""
        self.residents: dict[str, Resident] = {}
        found = {name: arrays[name] for name in names if name in readable}
        half = any(np.dtype(array.dtype).name == HALF for array in arrays.values())
        self._requests = {name: requests[name] for name in executor.arg_dict}
        for name, array in found.items():
            resident = self.residents[name] = Resident(array, self.home)
            resident.taped = False
            gradient = executor.grad_dict.get(name)
            if gradient is not None:
                resident.gradient, resident.request = Resident(gradient, self.home), self._requests[name]
        learned = [name for name, array in executor.grad_dict.items() if array is not None]
        made, self._owned, self._tokens = with_residents(graph, self.residents, half, learned=learned)
        used = {id(resident) for one in self._owned for resident in one.arrays.values()}
        for name, resident in list(self.residents.items()):
            if id(resident) not in used:
                resident.leave("the region that reads it shows no type")
                del self.residents[name]
        self.symbol = mx.sym.load_json(json.dumps(made))

    def bind(self, executor: Any) -> Any:
        """Return an executor of the copy with the arrays of one of the symbol."""
        arrays = {**executor.arg_dict, **self._tokens}
        arguments = {name: arrays[name] for name in self.symbol.list_arguments()}
        gradients = {name: array for name, array in executor.grad_dict.items() if array is not None}
        gradients.update({name: token.grad for name, token in self._tokens.items() if not name.endswith(STILL)})
        gradients = {name: array for name, array in gradients.items() if name in arguments}
        requests = {name: self._requests.get(name, "write") if name in gradients else "null" for name in arguments}
        states = {name: executor.aux_dict[name] for name in self.symbol.list_auxiliary_states()}
        return self.symbol.bind(executor._ctx, arguments, gradients, requests, states, executor._group2ctx)

    def leave(self, reason: str) -> None:
        """Make all arrays MXNet's alone again; nothing waits for a backward then."""
        self.left = reason
        self.home.forget()
        for resident in self.residents.values():
            resident.leave(reason)


class ResidentExecutor(mx.executor.Executor):  # type: ignore[misc]
    """MXNet's executor, which runs with residents until somebody else asks for its handle.

    Other executors that share its memory, and monitors, do: they read arrays of the host.
    """

    outputs: Any

    @classmethod
    def made(cls, executor: Any, stay: Stay) -> Any:
        """Return an executor of MXNet as one of these."""
        executor.__class__ = cls
        executor._stay, executor._copy, executor._inside, executor._trained = stay, stay.bind(executor), False, False
        frozen = FrozenExecutor(executor)
        executor._frozen, executor._others = frozen if frozen.reads(stay.residents) else None, {}
        return executor

    @property
    def handle(self) -> Any:
        """MXNet's handle, for others: the parameters go back to the host."""
        if not self._inside and not self._stay.left:
            self._stay.leave("something else uses the executor, such as a monitor or a module that shares its arrays")
        return self.__dict__["handle"]

    @handle.setter
    def handle(self, value: Any) -> None:
        self.__dict__["handle"] = value

    def __del__(self) -> None:
        check_call(_LIB.MXExecutorFree(self.__dict__["handle"]))

    def forward(self, is_train: bool = False, **kwargs: Any) -> Any:
        """Compute the outputs; as MXNet's method of this name."""
        self._trained = False
        if self._stay.left:
            return super().forward(is_train, **kwargs)
        if self._frozen is not None and self._frozen.forward(self, is_train, kwargs):
            return self.outputs
        own = [name for name in kwargs if name in self._stay.residents]
        for name in own:
            self.arg_dict[name][:] = kwargs.pop(name)
        self._stay.home.start(self._stay.residents.values(), bool(is_train))
        self.outputs, self._trained = self._copy.forward(is_train, **kwargs), bool(is_train)
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients; as MXNet's method of this name."""
        if self._stay.left and self._trained:
            raise OperatorError(
                f"[resident] got a backward of a forward with parameters on the device, which have left it since "
                f"({self._stay.left}), expected a forward in between"
            )
        if self._stay.left:
            super().backward(out_grads, is_train)
        else:
            self._stay.home.begin_backward(False)
            self._copy.backward(out_grads, is_train)

    def reshape(self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any) -> Any:
        """Return an executor of other shapes that shares the parameters; as MXNet's method of this name."""
        if self._stay.left:
            return super().reshape(partial_shaping, allow_up_sizing, **kwargs)
        if all(name in self.arg_dict and self.arg_dict[name].shape == shape for name, shape in kwargs.items()):
            return self
        key = tuple(sorted((name, tuple(shape)) for name, shape in kwargs.items()))
        if key in self._others:
            return self._others[key]
        self._inside = True
        try:
            made = super().reshape(partial_shaping, allow_up_sizing, **kwargs)
        finally:
            self._inside = False
        names = self._symbol.list_arguments()
        for place, name in enumerate(names):
            if name in self._stay.residents:
                made.arg_arrays[place], made.grad_arrays[place] = self.arg_arrays[place], self.grad_arrays[place]
        for place, name in enumerate(self._symbol.list_auxiliary_states()):
            if name in self._stay.residents:
                made.aux_arrays[place] = self.aux_arrays[place]
        if len(self._others) >= MOST_SHAPES:
            del self._others[next(iter(self._others))]
        self._others[key] = ResidentExecutor.made(made, self._stay)
        return self._others[key]
