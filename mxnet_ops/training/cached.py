"""Cached graphs that run with residents: the copy of a symbol whose regions have them, with tokens as inputs."""

from __future__ import annotations

import json
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import mxnet as mx
import numpy as np

from clgraft.mxnet_ops.engine import backward_writes
from clgraft.mxnet_ops.engine.changes import changed
from clgraft.mxnet_ops.engine.residents import (
    HALF,
    Home,
    Resident,
    around_backward,
    resident_of,
    state_of_all,
    there_are_residents,
)
from clgraft.mxnet_ops.engine.results import Result
from clgraft.mxnet_ops.frozen import inference
from clgraft.mxnet_ops.guards import guard
from clgraft.mxnet_ops.regions.residents import Residents
from clgraft.mxnet_ops.training.resident_graph import TOKEN, left_heads, read_by_regions, with_residents

MOST_COPIES = 4  # of a symbol: with other residents


class Adopter(Protocol):
    """A trainer, some of whose parameters had no shape yet."""

    def adopt(self) -> None:
        """Take the parameters that are initialized."""


waiting: weakref.WeakSet[Adopter] = weakref.WeakSet()  # adopters


class Copy:
    """A cached graph of a symbol with residents.

    Parameters
    ----------
    names : sequence of str
        The inputs of the symbol itself.
    flags : sequence of (str, Any)
    graph : dict
        The symbol's JSON.
    residents : dict of str to Resident
    half : bool
        Whether any input is float16.
    """

    def __init__(
        self,
        names: Sequence[str],
        flags: Sequence[tuple[str, Any]],
        graph: Any,
        residents: dict[str, Resident],
        half: bool,
    ) -> None:
        found, self._owned, tokens_of = with_residents(graph, residents, half)
        symbol = mx.sym.load_json(json.dumps(found))
        inputs = symbol.list_inputs()
        before = {name: place for place, name in enumerate(names)}
        moves = {before[name]: new for new, name in enumerate(inputs) if name in before}
        tokens = [new for new, name in enumerate(inputs) if name in tokens_of]
        moved = []
        for key, value in flags:
            if key in inference.PLACES:
                value = [moves[int(old)] for old in value if int(old) in moves]
                value += tokens if key == "param_indices" else []
            moved.append((key, value))
        self._op = guard.CachedOp(symbol, moved)
        self._left = left_heads(found)
        self._leaving: list[Residents] = []  # that left some in the last call
        self._sources = [tokens_of.get(name, before.get(name)) for name in inputs]
        self._homes: dict[Home, dict[Resident, None]] = {}
        for resident in (resident for one in self._owned for resident in one.arrays.values()):
            self._homes.setdefault(resident.home, {})[resident] = None
        self._tokens = [  # places, homes and types
            (new, home, name.rpartition("_")[2])
            for new, name in enumerate(inputs)
            for home in self._homes
            if name.startswith(f"{TOKEN}{home.number}_")
        ]
        self._changing: dict[Home, dict[int, tuple[int, ...]]] = {}  # see `Home.call_number`
        for region, name in ((one, name) for one in self._owned for name in one.states):
            found = self._changing.setdefault(region.arrays[name].home, {})
            identity = id(region.arrays[name])
            found[identity] = (*found.get(identity, ()), region.number)

    def __call__(self, args: Sequence[Any], **kwargs: Any) -> Any:
        recorded, training = mx.autograd.is_recording(), mx.autograd.is_training()
        watched = recorded and training and not kwargs
        turns = self._leave(watched) if training else {}
        for home, residents in self._homes.items():
            home.start(residents, recorded)
        given = [args[source] if isinstance(source, int) else source for source in self._sources]
        for home, changing in self._changing.items() if recorded and training else ():
            number = home.call_number(changing)
            for place, other, dtype in self._tokens if number else ():
                if other is home:
                    given[place] = home.token(dtype, number)
        made = self._op(*given, **kwargs)
        if watched and self._left:
            self._watch(made if isinstance(made, (list, tuple)) else [made], turns)
        return made

    def _leave(self, may: bool) -> dict[Residents, int]:
        """Have regions leave the results on the device that are asked for late; return the turns of their slots."""
        self._left = {number: head for number, head in self._left.items() if not head.use.early}
        places: dict[Residents, list[int]] = {region: [] for region in self._leaving}
        for head in self._left.values() if may else ():
            if head.use.late:
                places.setdefault(head.region, []).append(head.place)
        self._leaving = [region for region, outputs in places.items() if outputs]
        return {region: region.leave(outputs) for region, outputs in places.items()}

    def _watch(self, made: Sequence[Any], turns: Mapping[Residents, int]) -> None:
        for number, head in self._left.items():
            array, slot = made[number], None
            if head.use.late:
                slot = head.region.slot(head.place, turns[head.region], array.size, np.dtype(array.dtype).name)
            Result(array, head.use, slot)


class Found(NamedTuple):
    """A copy that was found for some inputs, and what tells that it serves others.

    Attributes
    ----------
    copy : Copy
    state : int
        Of all residents.
    places, identities : tuple of int
        Of the inputs that have elements on the device.
    others, dtypes : tuple
        Places of the other inputs, and their types.
    parameters : tuple of Parameter
        Gluon's, whose arrays the residents are.
    written, requests : list
        Of the parameters: their gradients and how these are written, which residents follow.
    """

    copy: Copy
    state: int
    places: tuple[int, ...]
    identities: tuple[int, ...]
    others: tuple[int, ...]
    dtypes: tuple[Any, ...]
    parameters: tuple[Any, ...]
    written: list[Any]
    requests: list[str]

    def serves(self, args: Sequence[Any]) -> bool:
        """Return whether the copy serves some inputs."""
        if self.state != state_of_all() or len(args) != len(self.places) + len(self.others):
            return False
        if tuple([id(args[place]) for place in self.places]) != self.identities:
            return False
        if tuple([args[place].dtype for place in self.others]) != self.dtypes:
            return False
        same = self.requests == [parameter.grad_req for parameter in self.parameters]
        return same and all(map(operator.is_, self.written, [parameter._grad for parameter in self.parameters]))


class CachedOp(inference.CachedOp):
    """MXNet's cached graph, which runs with the residents among its inputs."""

    def __init__(self, sym: mx.sym.Symbol, flags: Sequence[tuple[str, Any]] = ()) -> None:
        super().__init__(sym, flags)
        text = sym.tojson() if type(sym) is mx.sym.Symbol else ""
        self._text = text if '"ocl_region"' in text else ""
        self._options, self._graph = tuple(flags), None
        self._readable: frozenset[str] = frozenset()
        self._copies: dict[tuple[int, ...], Copy] = {}
        self._found: Found | None = None  # the last one

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if waiting:
            for trainer in list(waiting):
                trainer.adopt()
        copy = self._copy_for(args) if self._text else None
        if copy is not None and self._readings is not None and mx.autograd.is_training():
            changed(array for name, array in zip(self._names, args) if name in self._readings.frozen.names)
        return super().__call__(*args, **kwargs) if copy is None else copy(args, **kwargs)

    def _register_op_hook(self, *args: Any, **kwargs: Any) -> None:
        self._text = ""  # somebody wants to see every operator
        super()._register_op_hook(*args, **kwargs)

    def _copy_for(self, args: Sequence[Any]) -> Copy | None:
        """Return the copy for the residents among the inputs; None without any."""
        if not there_are_residents():
            return None
        last, recorded = self._found, mx.autograd.is_recording()
        if last is not None and (self._readings is None or recorded) and last.serves(args):
            return last.copy
        found = {name: resident_of(array) for name, array in zip(self._names, args)}
        if not any(found.values()) or (self._readings is not None and not recorded):
            return None
        if self._graph is None:
            self._graph = json.loads(self._text)
            self._readable = frozenset(read_by_regions(self._graph))
        others = {np.dtype(array.dtype).name for name, array in zip(self._names, args) if found[name] is None}
        half = any(resident is not None and resident.dtype == HALF for resident in found.values())
        if "float64" in others or (HALF in others and not half):  # a region has one type
            return None
        own = {name: resident for name, resident in found.items() if resident and name in self._readable}
        for resident in own.values():
            resident.follow()
        if not own:
            return None
        key = tuple(map(id, own.values()))
        if key not in self._copies:
            if len(self._copies) >= MOST_COPIES:
                del self._copies[next(iter(self._copies))]
            self._copies[key] = Copy(self._names, self._options, self._graph, own, half)
        places = tuple(place for place, name in enumerate(self._names) if found[name] is not None)
        rest = tuple(place for place, name in enumerate(self._names) if found[name] is None)
        parameters = tuple(one for one in (resident.parameter() for resident in own.values()) if one is not None)
        self._found = Found(
            self._copies[key],
            state_of_all(),
            places,
            tuple(id(args[place]) for place in places),
            rest,
            tuple(args[place].dtype for place in rest),
            parameters,
            [parameter._grad for parameter in parameters],
            [parameter.grad_req for parameter in parameters],
        )
        return self._copies[key]


def install() -> None:
    """Have cached graphs run with residents; once per process."""
    mx.nd.CachedOp = CachedOp
    if around_backward not in backward_writes.AROUND:
        backward_writes.AROUND.append(around_backward)
