"""What updates residents on the device: the items of an updater of MXNet, and an updater for modules."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import mxnet as mx

from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine.changes import changed
from clgraft.mxnet_ops.engine.residents import DEVICE, HALF, MASTER, Resident, resident_of, state_of_all
from clgraft.mxnet_ops.training.update import (
    RULES,
    Item,
    Update,
    compile_update,
    groups_of,
    optimizer_of,
    state_kind,
    states_of,
    unserved,
    unserved_type,
)

MOST_UPDATES = 8  # sets of parameters and groups of numbers that stay compiled


class Prepared:
    """An update that has been counted, and waits for the gradients.

    Parameters
    ----------
    optimizer : mx.optimizer.Optimizer
    moved : sequence of tuple
        Indices with their items.

    Attributes
    ----------
    groups, numbers : tuple of int, list of Numbers
        See `groups_of`.
    decays : tuple of bool
        For each parameter, whether it decays.
    """

    def __init__(self, optimizer: Any, moved: Sequence[tuple[Any, Item]]) -> None:
        self._optimizer, self.items = optimizer, [item for _, item in moved]
        indices = [index for index, _ in moved]
        self._before = dict(optimizer._index_update_count), optimizer.num_update
        # MXNet counts before it asks for rates, but AdaDelta
        optimizer._update_count(indices)
        lrs, wds, counts = optimizer._get_lrs(indices), optimizer._get_wds(indices), optimizer._index_update_count
        self.groups, self.numbers = groups_of(zip(lrs, wds, [counts[index] for index in indices]))
        self.decays = tuple([wd != 0 for wd in wds])
        self._optimizers = {decay: optimizer_of(optimizer, decay) for decay in set(self.decays)}
        self.update: Update | None = None
        self._scalars: list[float] = []

    def find(self, compiled: dict[Any, Update], arrays: tuple[int, ...]) -> None:
        """Take the compiled update of arrays, given by their identities, or compile it."""
        kinds = tuple((one.kind, one.names, one.histories) for one in self._optimizers.values())
        key = (arrays, self.groups, self.decays, kinds)
        if key not in compiled:
            if len(compiled) >= MOST_UPDATES:
                del compiled[next(iter(compiled))]
            context = self.items[0].weight.home.context
            compiled[key] = compile_update(context, self.items, self.groups, self._optimizers, self.decays)
        self.update = compiled[key]
        optimizer = self._optimizers[max(self.decays)]
        self._scalars = self.update.scalars(optimizer, self._optimizer.rescale_grad, self.numbers)

    def run(self) -> None:
        """Update the parameters, after their backward; the update is queued."""
        assert self.update is not None
        self.items[0].weight.home.send(self.update.read)
        self.update.run(self._scalars)
        for one in self.update.changing:
            one.place = DEVICE
        changed(item.weight.array for item in self.items)

    def cancel(self) -> None:
        """Have MXNet's optimizer count as if nothing had been prepared."""
        counts, updates = self._before
        self._optimizer._index_update_count.clear()
        self._optimizer._index_update_count.update(counts)
        self._optimizer.num_update = updates


class _Known(NamedTuple):
    """The item of a parameter, and what it was made of."""

    item: Item
    gradient: Resident | None
    state: Any
    kind: type
    residents: int

    def holds(self, updater: Any, index: Any, resident: Resident) -> bool:
        """Return whether it is still the item of a parameter that has an index."""
        return (
            self.residents == state_of_all()
            and self.item.weight is resident
            and self.gradient is resident.gradient
            and updater.states.get(index, self) is self.state
            and type(updater.optimizer) is self.kind
        )


class Updates:
    """Updates residents as an updater of MXNet says, and keeps what was compiled.

    Parameters
    ----------
    name : str
        Of what updates, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._compiled: dict[Any, Update] = {}
        self._known: dict[Any, _Known] = {}  # by the parameters' indices
        self._arrays: tuple[list[Item], tuple[int, ...]] = ([], ())  # identities of the arrays of the last items

    def item(self, updater: Any, index: Any, resident: Resident) -> Item:
        """Return a parameter with what the optimizer keeps for it, as residents.

        Raises
        ------
        ProblemError
            If the optimizer is not served: it is another one than before.
        """
        optimizer, mixed = updater.optimizer, resident.dtype == HALF
        known = self._known.get(index)
        if known is not None and known.holds(updater, index, resident):
            return known.item
        reason = unserved(optimizer) or unserved_type(optimizer, resident.dtype)
        self._refuse(reason)
        if index not in updater.states:
            if mixed:
                resident.bring()  # a copy in float32 is made of it
            updater.states[index] = optimizer.create_state_multi_precision(index, resident.array)
        updater.states_synced[index] = True
        master, states = states_of(optimizer, updater.states[index], mixed)

        def of(array: Any, kind: str, negative: bool = False) -> Resident:
            known = resident_of(array)
            return known or Resident(array, resident.home, negative=negative, lies=resident.beside(kind))

        signs = RULES[type(optimizer)].negative
        kinds = [state_kind(number) for number in range(len(states))]
        item = Item(resident, tuple(map(of, states, kinds, signs)), None if master is None else of(master, MASTER))
        state = updater.states[index]
        self._known[index] = _Known(item, item.weight.gradient, state, type(optimizer), state_of_all())
        return item

    def _refuse(self, reason: str) -> None:
        """Raise an error if there is a reason why an optimizer is not served."""
        if reason:
            raise ProblemError(
                f"[{self._name}] got another optimizer than before ({reason}), expected one that is served"
            )

    def prepare(self, optimizer: Any, moved: Sequence[tuple[Any, Item]]) -> Prepared:
        """Count an update of parameters, given with their indices, and compile what it needs."""
        self._refuse(unserved(optimizer))
        made = Prepared(optimizer, moved)
        before, arrays = self._arrays
        if len(before) != len(made.items) or not all(map(operator.is_, before, made.items)):
            arrays = tuple(id(one) for item in made.items for one in (*item.changing, item.weight.gradient))
            self._arrays = made.items, arrays
        made.find(self._compiled, arrays)
        return made


class ResidentUpdater(mx.optimizer.Updater):  # type: ignore[misc]
    """MXNet's updater, which updates parameters on the device there.

    Parameters
    ----------
    updater : mx.optimizer.Updater
        Whose optimizer and states it takes over.
    """

    def __init__(self, updater: Any) -> None:
        self.__dict__.update(updater.__dict__)
        self._updates = Updates("resident")

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update parameters; as MXNet's method of this name."""
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        alone: list[tuple[Any, Any, Any]] = []
        moved: list[tuple[Any, Item]] = []
        for one, own, array in zip(index, grad, weight):
            resident = resident_of(array)
            if resident is None or resident.gradient is None or resident_of(own) is not resident.gradient:
                alone.append((one, own, array))
            else:
                moved.append((one, self._updates.item(self, one, resident)))
        if alone:
            super().__call__(*zip(*alone))
        if moved:
            moved[0][1].weight.home.settle()
            self._updates.prepare(self.optimizer, moved).run()
