"""Executors that run with residents: a second one for a copy of the symbol, whose regions have them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from clgraft import core
from clgraft.mxnet_ops.engine.changes import address_of
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.engine.residents import GRADIENT, HALF, Home, Resident, together
from clgraft.mxnet_ops.frozen.inference import FrozenExecutor
from clgraft.mxnet_ops.training.resident_graph import STILL, read_by_regions, with_residents

MOST_SHAPES = 4  # of an executor: others that it was reshaped to and that stay bound


class CopiedSymbol:
    """A copy of an executor's symbol whose regions have residents.

    Parameters
    ----------
    executor : Executor
    residents : mapping of str to Resident
        By the names of variables that regions alone read.
    requests : mapping of str to str
        How gradients are written.

    Attributes
    ----------
    used : list of str
        The residents that a region has: others show no type.
    """

    def __init__(self, executor: Any, residents: Mapping[str, Resident], requests: Mapping[str, str]) -> None:
        graph = json.loads(executor._symbol.tojson())
        arrays = [*executor.arg_dict.values(), *executor.aux_dict.values()]
        half = any(np.dtype(array.dtype).name == HALF for array in arrays)
        self._requests = {name: requests[name] for name in executor.arg_dict}
        learned = [name for name, array in executor.grad_dict.items() if array is not None]
        made, self._owned, self._tokens = with_residents(graph, residents, half, learned=learned)
        found = {id(resident) for one in self._owned for resident in one.arrays.values()}
        self.used = [name for name, resident in residents.items() if id(resident) in found]
        self._symbol = mx.sym.load_json(json.dumps(made))

    def bind(self, executor: Any) -> Any:
        """Return an executor of the copy with the arrays of one of the symbol."""
        arrays = {**executor.arg_dict, **self._tokens}
        arguments = {name: arrays[name] for name in self._symbol.list_arguments()}
        gradients = {name: array for name, array in executor.grad_dict.items() if array is not None}
        gradients.update({name: token.grad for name, token in self._tokens.items() if not name.endswith(STILL)})
        gradients = {name: array for name, array in gradients.items() if name in arguments}
        requests = {name: self._requests.get(name, "write") if name in gradients else "null" for name in arguments}
        states = {name: executor.aux_dict[name] for name in self._symbol.list_auxiliary_states()}
        return self._symbol.bind(executor._ctx, arguments, gradients, requests, states, executor._group2ctx)


class Stay:
    """The residents of parameters, gradients and auxiliary states, which executors of several symbols may share.

    Parameters
    ----------
    executor : Executor
        The first of them, which becomes a `ResidentExecutor` if there are residents.
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
        arrays, readable = {**executor.arg_dict, **executor.aux_dict}, _readable(executor)
        self.home, self.left = Home(core.context(), executor._ctx), ""
        self.residents: dict[str, Resident] = {}
        names = [name for name in names if name in readable]
        gradients = {name: executor.grad_dict[name] for name in names if executor.grad_dict.get(name) is not None}
        places = together(self.home, {name: arrays[name] for name in gradients})
        for name in names:
            resident = self.residents[name] = Resident(arrays[name], self.home, lies=places.get(name))
            resident.taped = False
            if name in gradients:
                resident.gradient = Resident(gradients[name], self.home, lies=resident.beside(GRADIENT))
                resident.request = requests[name]
        copied = CopiedSymbol(executor, self.residents, requests)
        for name in self.residents.keys() - copied.used:
            self.residents.pop(name).leave("the region that reads it shows no type")
        if self.residents:
            ResidentExecutor.made(executor, self, copied)

    def join(self, executor: Any, first: Any, requests: Mapping[str, str]) -> None:
        """Have an executor of another symbol, which MXNet made with the arrays of the first one, run with residents.

        If one of them is read outside of regions there, or has another array, all leave.
        """
        arrays = {**executor.arg_dict, **executor.aux_dict}
        shared = {name: one for name, one in self.residents.items() if name in arrays}
        places = {name: place for place, name in enumerate(executor._symbol.list_arguments())}
        for name, resident in shared.items():
            gradient = executor.grad_dict.get(name)
            own = [resident.array, *[one.array for one in (resident.gradient,) if one]]
            others = [arrays[name], *[one for one in (gradient,) if one is not None]]
            if list(map(address_of, own)) != list(map(address_of, others)):
                return self.leave(f"another executor has its own array for {name}")
        for name in shared.keys() & places.keys():
            executor.arg_arrays[places[name]] = first.arg_dict[name]
            executor.grad_arrays[places[name]] = first.grad_dict[name]
        for place, name in enumerate(executor._symbol.list_auxiliary_states()):
            if name in shared:
                executor.aux_arrays[place] = first.aux_dict[name]
        executor._arg_dict = executor._grad_dict = executor._aux_dict = None
        outside = shared.keys() - _readable(executor)
        copied = CopiedSymbol(executor, {name: one for name, one in shared.items() if name not in outside}, requests)
        unused = sorted(shared.keys() - copied.used)
        if unused:
            return self.leave(f"another symbol reads {unused[0]} outside of regions")
        ResidentExecutor.made(executor, self, copied)

    def leave(self, reason: str) -> None:
        """Make all arrays MXNet's alone again; nothing waits for a backward then."""
        self.left = reason
        self.home.forget()
        for resident in self.residents.values():
            resident.leave(reason)


def _readable(executor: Any) -> set[str]:
    return read_by_regions(json.loads(executor._symbol.tojson()))


class ResidentExecutor(mx.executor.Executor):  # type: ignore[misc]
    """MXNet's executor, which runs with residents until somebody else asks for its handle.

    Other executors that share its memory, and monitors, do: they read arrays of the host.
    """

    outputs: Any

    @classmethod
    def made(cls, executor: Any, stay: Stay, copied: CopiedSymbol) -> Any:
        """Return an executor of MXNet as one of these."""
        executor.__class__ = cls
        executor._stay, executor._copied, executor._copy = stay, copied, copied.bind(executor)
        executor._inside, executor._trained = False, False
        frozen = FrozenExecutor(executor)
        executor._frozen, executor._others = frozen if frozen.reads(copied.used) else None, {}
        return executor

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have MXNet make executors with its arrays that will run with residents too."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

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
        own = [name for name in kwargs if name in self._copied.used]
        for name in own:
            self.arg_dict[name][:] = kwargs.pop(name)
        self._stay.home.start([self._stay.residents[name] for name in self._copied.used], bool(is_train))
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
        with self.lent():
            made = super().reshape(partial_shaping, allow_up_sizing, **kwargs)
        names = self._symbol.list_arguments()
        for place, name in enumerate(names):
            if name in self._copied.used:
                made.arg_arrays[place], made.grad_arrays[place] = self.arg_arrays[place], self.grad_arrays[place]
        for place, name in enumerate(self._symbol.list_auxiliary_states()):
            if name in self._copied.used:
                made.aux_arrays[place] = self.aux_arrays[place]
        if len(self._others) >= MOST_SHAPES:
            del self._others[next(iter(self._others))]
        self._others[key] = ResidentExecutor.made(made, self._stay, self._copied)
        return self._others[key]
