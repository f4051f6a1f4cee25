"""`Trainer`: Gluon's trainer, whose parameters, gradients and states stay on a device with memory of its own."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from clgraft import core
from clgraft.core import ProblemError
from clgraft.core.errors import hint
from clgraft.mxnet_ops.engine.residents import (
    AVAILABLE,
    HOST,
    Home,
    Place,
    Resident,
    ResidentArray,
    resident_of,
    state_of_all,
    together,
)
from clgraft.mxnet_ops.optimizers.update import SERVED
from clgraft.mxnet_ops.training import cached
from clgraft.mxnet_ops.training.update import Item, compile_overflow, unserved, unserved_type
from clgraft.mxnet_ops.training.updater import Updates

STALE = (
    "Gradient of Parameter `{}` on context {} has not been updated by backward since last `step`. This could mean a "
    "bug in your model that made it only use a subset of the Parameters (Blocks) for this iteration. If you are "
    "intentionally only using a subset, call step with ignore_stale_grad=True to suppress this warning and skip "
    "updating of Parameters with stale gradient"
)


class Trainer(gluon.Trainer):  # type: ignore[misc]
    """Gluon's trainer for swapped nets.

    On a device with memory of its own, such as a graphics card, parameters, gradients and the optimizer's states stay
    there, and a step is one call. They come to the host when they are asked for. On devices that use the host's memory
    it is Gluon's trainer with this package's optimizers.

    Parameters
    ----------
    params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore
        As of `mxnet.gluon.Trainer`; ``adamw`` is one of the optimizers.
    outside : collection of str
        Names of parameters that stay in the host's memory, because operators outside of regions read them too.

    Examples
    --------
    >>> swap_block(net)
    >>> net.hybridize()
    >>> trainer = clgraft.mxnet_ops.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        kvstore: Any = "device",
        compression_params: Any = None,
        update_on_kvstore: Any = None,
        *,
        outside: Collection[str] = (),
    ) -> None:
        super().__init__(params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore)
        known = [parameter.name for parameter in self._params]
        for name in outside:
            if name not in known:
                raise ProblemError(f"[Trainer] got outside {name!r}, expected some of {known}{hint(name, known)}")
        self._outside = dict.fromkeys(outside, "it is one of the argument outside")
        self._home: Home | None = None
        self._residents: dict[int, Resident] = {}
        self._updates = Updates("Trainer")
        self._learned: _Learned | None = None  # of the last step
        self._checked: Any = ((), None, [])  # what tells whether gradients are finite
        self._host = self._why_host()
        cached.waiting.add(self)
        self.adopt()

    def _init_optimizer(self, optimizer: Any, optimizer_params: Any) -> None:
        if optimizer == "adamw" and "adamw" not in mx.optimizer.Optimizer.opt_registry:
            optimizer = "ocl_adamw"
        super()._init_optimizer(optimizer, optimizer_params)
        made: Any = self._optimizer
        kinds: list[Any] = [kind for kind in SERVED if getattr(kind, "MXNETS", None) is type(made)]
        if isinstance(optimizer, str) and kinds:
            self._optimizer: Any = kinds[0].of(made)
            self._updaters = [mx.optimizer.get_updater(self._optimizer) for _ in self._contexts]

    # which parameters are on the device

    @property
    def host(self) -> dict[str, str]:
        """The parameters that are in the host's memory, with the reason."""
        found = {}
        for index, parameter in enumerate(self._params):
            array, before = parameter._data[0] if parameter._data else None, self._residents.get(index)
            if resident_of(array) is None:
                left = "" if before is None else before.left
                found[parameter.name] = left or self._host or self._why_alone(parameter) or "no step has taken it yet"
        return found

    def _why_host(self) -> str:
        """Return why all parameters are in the host's memory; empty if they are not."""
        if core.context().device.host_access != "staged":
            return "the device uses the host's memory"
        if not AVAILABLE:
            return "this build of MXNet has arrays of Cython"
        kind = getattr(self._kvstore_params["kvstore"], "type", self._kvstore_params["kvstore"])
        if self._kvstore is not None or (kind and "dist" in str(kind)):
            return "a key-value store has them"
        if len(self._contexts) != 1 or self._contexts[0].device_type != "cpu":
            return f"they are on {self._contexts}"
        return unserved(self._optimizer)

    def _why_alone(self, parameter: Any) -> str:
        """Return why a parameter is in the host's memory; empty if it is not, or not for long."""
        if parameter.name in self._outside:
            return self._outside[parameter.name]
        if parameter._stype != "default" or parameter._grad_stype != "default":
            return "it is sparse"
        reason = unserved_type(self._optimizer, np.dtype(parameter.dtype).name)
        if reason:
            return reason
        if parameter._data is not None and type(parameter._data[0]) not in (mx.nd.NDArray, ResidentArray):
            return f"its array is of the type {type(parameter._data[0]).__name__}"
        return ""

    def adopt(self) -> None:
        """Take the parameters that are initialized to the device."""
        if self._host:
            cached.waiting.discard(self)
            return
        complete = True
        found: list[tuple[int, Any, Any]] = []
        for index, parameter in enumerate(self._params):
            before = self._residents.get(index)
            known = bool(parameter._data) and resident_of(parameter._data[0]) is before is not None
            if known or (before is not None and before.left):
                continue
            if self._why_alone(parameter):
                continue
            if parameter._data is None:
                complete = False
                continue
            array = parameter._data[0]
            if not array.size:
                continue
            found.append((index, parameter, array))
        self._take(found)
        if complete:
            cached.waiting.discard(self)

    def _take(self, found: Sequence[tuple[int, Any, Any]]) -> None:
        """Take parameters to the device, those that are learned one after another."""
        if found and self._home is None:
            self._home = Home(core.context(), found[0][2].context)
        learned = {
            parameter.name: array
            for _, parameter, array in found
            if resident_of(array) is None and parameter.grad_req != "null"
        }
        places = together(self._home, learned) if self._home is not None else {}
        for index, parameter, array in found:
            self._residents[index] = self._adopted(parameter, array, places.get(parameter.name))

    def _adopted(self, parameter: Any, array: Any, lies: Place | None) -> Resident:
        assert self._home is not None
        known = resident_of(array)
        if known is not None and known.home is not self._home:  # another trainer's
            known.leave("another Trainer has it")
            known = None
        if known is None:
            fresh = array.grad is not None and bool(array._fresh_grad)  # by a backward that read it as MXNet's
            if fresh:
                array._fresh_grad = False
            known = Resident(array, self._home, lies=lies)
            known.fresh = fresh
        resident = known
        resident.parameter = weakref.ref(parameter)
        resident.follow()
        return resident

    # a step

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._kvstore is not None and not self._host:
            self._host = "a key-value store has them"
            for resident in self._residents.values():
                if not resident.left:
                    resident.leave(self._host)
        if self._home is None or self._host:
            super()._update(ignore_stale_grad)
            return
        # what can be prepared while the device computes
        found = self._found()
        learned, items, moved = found.learned, found.items, found.moved
        prepared = self._updates.prepare(self._optimizer, moved) if moved else None
        taken = False
        try:
            self._home.settle()
            scaler = getattr(self, "_amp_loss_scaler", None)
            if scaler is not None and scaler.has_overflow(self._with_gradients()):
                return
            taken = len(moved) == len(learned) and all([item.weight.fresh for _, item in moved])
            if not taken:
                fresh = {index: _is_fresh(items[index], array) for index, _, array in learned}
                for index, parameter, array in learned:
                    if not (fresh[index] or ignore_stale_grad):
                        raise UserWarning(STALE.format(parameter.name, array.context))
                taken = all(fresh[index] for index, _ in moved)
        finally:
            if prepared is not None and not taken:
                prepared.cancel()
        if not taken:  # without those that are stale
            moved = [(index, item) for index, item in moved if fresh[index]]
            prepared = self._updates.prepare(self._optimizer, moved) if moved else None
        if len(items) > len(found.moved):
            self._update_alone([one for one in learned if items[one[0]] is None and fresh[one[0]]])
        if prepared is not None:
            prepared.run()
            for item in prepared.items:
                item.weight.fresh = False

    def _update_alone(self, learned: Sequence[tuple[int, Any, Any]]) -> None:
        """Have MXNet update parameters that are its own."""
        for _, _, array in learned:
            array._fresh_grad = False
        if learned:
            self._updaters[0](*zip(*[(index, parameter._grad[0], array) for index, parameter, array in learned]))

    def _found(self) -> _Learned:
        """Return the parameters that are learned, with what is on the device of them."""
        if self._learned is None or not self._learned.hold(self._params, self._updaters[0]):
            self.adopt()
            learned = [
                (index, parameter, parameter._check_and_get(parameter._data, list)[0])
                for index, parameter in enumerate(self._params)
                if parameter.grad_req != "null"
            ]
            items = {index: self._item(index, resident_of(array)) for index, _, array in learned}
            moved = [(index, item) for index, item in items.items() if item is not None]
            self._learned = _Learned.now(learned, items, moved, self._params, self._updaters[0])
        return self._learned

    def _with_gradients(self) -> list[Any]:
        """Return what has all gradients for AMP; for those on the device one element that overflows with them."""
        found, moved = [], []
        for parameter in self._params:
            resident = None if parameter._grad is None else resident_of(parameter._grad[0])
            if resident is None or resident.place == HOST:
                found.append(parameter)
            else:
                moved.append(resident)
        if moved:
            key = tuple(id(resident) for resident in moved)
            if key != self._checked[0]:
                self._checked = key, compile_overflow(moved[0].home.context, moved), moved
            found.append(SimpleNamespace(_grad=[mx.nd.array([np.inf if self._checked[1]() else 0.0])]))
        return found

    def _item(self, index: int, resident: Resident | None) -> Item | None:
        """Return a parameter with what the optimizer keeps for it, as residents; None if it is MXNet's alone."""
        if resident is None:
            return None
        resident.follow()
        return self._updates.item(self._updaters[0], index, resident)


class _Learned(NamedTuple):
    """Parameters that are learned, and what tells that they are the same in another step.

    Attributes
    ----------
    learned : list of tuple
        Indices with the parameters and their arrays.
    items : dict of int to Item or None
        By index; None of parameters that are MXNet's alone.
    moved : list of tuple
        Indices with the items.
    residents : int
        The state of all.
    optimizer : type
    requests : list of str
    arrays : list
        What parameters have, then what they have of gradients, then the states of an updater.
    """

    learned: list[tuple[int, Any, Any]]
    items: dict[int, Item | None]
    moved: list[tuple[int, Item]]
    residents: int
    optimizer: type
    requests: list[str]
    arrays: list[Any]

    @classmethod
    def now(cls, learned: Any, items: Any, moved: Any, parameters: Sequence[Any], updater: Any) -> _Learned:
        """Return what was found for parameters and an updater as they are now."""
        requests = [parameter.grad_req for parameter in parameters]
        return cls(
            learned, items, moved, state_of_all(), type(updater.optimizer), requests, _arrays(parameters, updater)
        )

    def hold(self, parameters: Sequence[Any], updater: Any) -> bool:
        """Return whether it is still so."""
        if self.residents != state_of_all() or type(updater.optimizer) is not self.optimizer:
            return False
        if self.requests != [parameter.grad_req for parameter in parameters]:
            return False
        found = _arrays(parameters, updater)
        return len(found) == len(self.arrays) and all(map(operator.is_, found, self.arrays))


def _arrays(parameters: Sequence[Any], updater: Any) -> list[Any]:
    data, gradients = [one._data for one in parameters], [one._grad for one in parameters]
    return [*data, *gradients, *updater.states.values()]


def _is_fresh(item: Item | None, array: Any) -> bool:
    """Return whether a backward has written the gradient of a parameter since the last update."""
    return bool(array._fresh_grad if item is None else item.weight.fresh)
