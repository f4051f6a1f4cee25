"""Lets MXNet's engine know what backward of an operator writes besides gradients: moving statistics.

MXNet's own batch norm declares that its backward changes the moving statistics, so that those who read them wait for
it. A Custom operator cannot. Its backward does *read* its auxiliary states as far as the engine knows: a write that is
queued after the backward waits for it, and readers that come later wait for that write. Such a write, which changes
nothing, follows here on every backward, for the auxiliary states of executors and of recorded calls.

Nothing orders the backwards of several calls that change the same states, so they leave what they would write aside,
and the write that follows changes the states by all of it, in the order of MXNet's own backwards.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Union

import mxnet as mx
from mxnet.base import check_call

from clgraft.mxnet_ops.engine import plain
from clgraft.mxnet_ops.engine.backward_order import Changes, Order, name_of, number_of_call, symbol_of, wanted_of
from clgraft.mxnet_ops.engine.calls import ffi, lib
from clgraft.mxnet_ops.engine.changes import address_of, changed
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator
from clgraft.mxnet_ops.engine.results import described

_SECOND_ORDER = re.compile(
    r"Operator _backward_(squeeze|Custom|mul_scalar) is non-differentiable|CachedOp does not support higher order"
)

# gets collections of variables that stand for the same ones (see `Order`)
OrderOf = Callable[[Sequence[Collection[str]]], Union[Order, None]]

# called before a backward, with whether only the gradients of given arrays are wanted, and what returns the order of
# the backwards in its graph; what it returns is called after
AROUND: list[Callable[[bool, OrderOf], Callable[[], None]]] = []

_lock = threading.Lock()
_recording = threading.local()  # op_types: of the calls recorded in this thread since its last backward


@dataclass
class _State:
    """An auxiliary state of recorded calls.

    Attributes
    ----------
    array : NDArray
    left : int
        For how many more backwards it is remembered.
    calls : int
        How many operators change it in a backward that may be still to come.
    times : int
        How often a call does at most.
    """

    array: Any
    left: int = 0
    calls: int = 0
    times: int = 1


class _Waiting(NamedTuple):
    """An array that several backwards change, and the changes."""

    array: Any
    changes: Changes


_recorded: dict[int, _State] = {}  # by handle
_several: set[int] = set()  # handles of those that more than one operator may change


def announce(arrays: Iterable[Any]) -> None:
    """Queue a write to each array that leaves it as it is."""
    arrays = list(arrays)
    changed(arrays)
    if plain.AVAILABLE:  # as one operation, which writes all of them
        plain.make_plain(arrays)
        return
    with mx.autograd.pause():
        for array in arrays:
            mx.nd._internal._mul_scalar(array, scalar=1.0, out=array)


def remember(op_types: Iterable[str], arrays: Iterable[tuple[Any, int]]) -> list[Any]:
    """Keep the names of a recorded call, and its auxiliary states with their uses, until its backward comes.

    Returns
    -------
    list of NDArray
        States of which other calls may have a backward to come.
    """
    _recording.__dict__.setdefault("op_types", {}).update(dict.fromkeys(op_types, True))
    others = []
    with _lock:
        for array, times in arrays:
            handle = array.handle.value
            state = _recorded.get(handle)
            if state is None:
                state = _recorded[handle] = _State(array)
            if state.calls:
                others.append(array)
            state.left = plain.BACKWARDS
            state.calls += times
            if state.calls > 1:
                state.times = max(state.times, times)
                _several.add(handle)
    return others


def announce_recorded() -> None:
    """Queue a write to each state that is remembered."""
    with _lock:
        arrays = [state.array for state in _recorded.values()]
        for handle, state in list(_recorded.items()):
            state.left -= 1
            if handle not in _several:
                state.calls = 0
            if not state.left:
                del _recorded[handle]
                _several.discard(handle)
    announce(arrays)


def _push(waiting: list[_Waiting], end: bool) -> None:
    """Queue what begins or ends that backwards leave changes of arrays aside."""
    handles = ffi.new("uintptr_t[]", [one.array.handle.value for one in waiting])
    numbers = [number for _, (order, calls) in waiting for number in (len(order), *order, *calls)]
    given = ffi.new("int32_t[]", numbers) if end else ffi.NULL
    check_call(lib.clg_mx_push_averages(handles, len(waiting), given, len(numbers)))


class _Begun:
    """A backward that is about to begin: MXNet's function, and what it is called with."""

    def __init__(self, original: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        self._original, self._args, self._kwargs = original, args, kwargs
        self._found: list[Order | None] = []

    @cached_property
    def _given(self) -> Mapping[str, Any]:
        return inspect.signature(self._original).bind(*self._args, **self._kwargs).arguments

    @property
    def heads(self) -> list[Any]:
        """The arrays that it begins with."""
        found = self._args[0] if self._args else self._kwargs.get("heads")
        return [*found] if isinstance(found, (list, tuple)) else [found]

    @property
    def retains(self) -> bool:
        """Whether its graph may have another backward."""
        return bool(self._given.get("retain_graph") or self._given.get("create_graph"))

    def order(self, alike: Sequence[Collection[str]] = ()) -> Order | None:
        """Return the order of the backwards in its graph; `alike` (see `Order`) counts the first time."""
        if not self._found:
            self._found.append(self._order(alike))
        return self._found[0]

    def _order(self, alike: Sequence[Collection[str]]) -> Order | None:
        variables = self._given.get("variables", ())
        variables = variables if isinstance(variables, (list, tuple)) else [variables]
        try:
            graph = json.loads(symbol_of(self.heads).tojson())
        except mx.MXNetError:  # there is no such graph: the backward fails as well
            return None
        return Order(graph, wanted_of(graph, variables), number_of_call, alike)


def _waiting_for(begun: _Begun) -> list[_Waiting]:
    """Return the states that several operators of a backward change."""
    order = begun.order()
    if order is None:
        return []
    found: dict[int, _Waiting] = {}
    with _lock:
        for handle in list(_several):
            state = _recorded[handle]
            name = name_of(state.array)
            if not name or not order.reads(name):
                continue
            changes = order.of_calls(name, state.times)
            if len(changes.order) > 1:
                found[address_of(state.array)] = _Waiting(state.array, changes)
            if not begun.retains:  # MXNet forgets the other calls, too
                state.calls, state.times = 0, 1
                _several.discard(handle)
    return list(found.values())


def _changes_states(family: type[Operator] | None) -> bool:
    return family is not None and family.auxiliary is not Operator.auxiliary


def state_uses(symbol: mx.sym.Symbol) -> Mapping[str, int]:
    """Return how many operators of this package change an auxiliary state in backward, by the states' names."""
    text = symbol.tojson()
    if not any(f'"{op_type}"' in text for op_type, family in FAMILIES.items() if _changes_states(family)):
        return {}
    nodes, found = json.loads(text)["nodes"], []
    states = set(symbol.list_auxiliary_states())
    for node in nodes:
        if node["op"] == "Custom" and _changes_states(FAMILIES.get(node["attrs"].get("op_type"))):
            found += [nodes[entry[0]]["name"] for entry in node["inputs"] if nodes[entry[0]]["name"] in states]
    return Counter(found)


def clgraft_types(symbol: mx.sym.Symbol) -> list[str]:
    """Return the ``op_type`` of each operator of this package in a symbol, once."""
    text = symbol.tojson()
    if '"ocl_' not in text:
        return []
    found = (node.get("attrs", {}).get("op_type") for node in json.loads(text)["nodes"] if node["op"] == "Custom")
    return list(dict.fromkeys(op_type for op_type in found if op_type in FAMILIES))


class CachedOp(mx.nd.CachedOp):  # type: ignore[misc]
    """MXNet's cached graph; it remembers the operators and the states of its recorded calls."""

    def __init__(self, sym: mx.sym.Symbol, *arguments: Any, **kwargs: Any) -> None:
        super().__init__(sym, *arguments, **kwargs)
        names = sym.list_inputs()
        self._states = [(names.index(name), uses) for name, uses in state_uses(sym).items()]
        self._op_types = clgraft_types(sym)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._op_types and mx.autograd.is_recording():
            others = remember(self._op_types, ((args[place], uses) for place, uses in self._states))
            if others:  # forwards of static graphs do not write states: without this nothing would order the calls
                announce(others)
        return super().__call__(*args, **kwargs)


def _recorded_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        begun = _Begun(original, args, kwargs)
        with described(begun.heads):
            return run(begun, *args, **kwargs)

    def run(begun: _Begun, *args: Any, **kwargs: Any) -> Any:
        op_types = ", ".join(_recording.__dict__.get("op_types", {}))
        # first: what these wait for would else wait for all that the next line's operation does
        ends = [begin(original.__name__ == "grad", begun.order) for begin in AROUND]
        plain.before_backward()
        waiting = _waiting_for(begun) if _several else []
        if waiting:
            _push(waiting, False)
        try:
            result = original(*args, **kwargs)
        except mx.MXNetError as failure:
            found = _SECOND_ORDER.search(str(failure))
            if not op_types or not found:
                raise
            _recording.__dict__.pop("op_types", None)
            reason = (
                "MXNet's Custom operators have no other (leave these operators to MXNet with select)"
                if found[1]
                else "MXNet's hybridized nets have no other, nor have its Custom operators"
            )
            raise OperatorError(
                f"[{op_types}] got a gradient of a gradient, expected the first order: {reason}"
            ) from failure
        finally:
            if waiting:
                _push(waiting, True)
            for end in ends:
                end()
        if original.__name__ != "grad":  # the graph of `grad` may be differentiated again
            _recording.__dict__.pop("op_types", None)
        if _recorded:
            announce_recorded()
        return result

    return backward


def _states_of(executor: mx.executor.Executor) -> tuple[list[Any], list[_Waiting]]:
    """Return the states that backward changes, and those that several operators change."""
    uses, arrays = state_uses(executor._symbol), executor.aux_dict
    waiting = []
    if any(count > 1 for count in uses.values()):
        graph = json.loads(executor._symbol.tojson())
        order = Order(graph, [name for name, array in executor.grad_dict.items() if array is not None])
        found = {name: order.of_calls(name).order for name, count in uses.items() if count > 1}
        waiting = [_Waiting(arrays[name], Changes(places, [0] * len(places))) for name, places in found.items()]
    return [arrays[name] for name in uses], waiting


def _executor_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(self: mx.executor.Executor, *args: Any, **kwargs: Any) -> Any:
        found = self.__dict__.get("_clgraft_states")
        if found is None:
            found = self._clgraft_states = _states_of(self)
        states, waiting = found
        if not waiting:
            result = original(self, *args, **kwargs)
        else:
            _push(waiting, False)
            try:
                result = original(self, *args, **kwargs)
            finally:
                _push(waiting, True)
        announce(states)
        return result

    return backward


def install() -> None:
    """Wrap MXNet's functions that start a backward; once per process."""
    if getattr(mx.nd.NDArray.backward, "__wrapped__", None) is not None:
        return
    mx.nd.NDArray.backward = _recorded_backward(mx.nd.NDArray.backward)
    for name in ("backward", "grad"):
        setattr(mx.autograd, name, _recorded_backward(getattr(mx.autograd, name)))
    mx.executor.Executor.backward = _executor_backward(mx.executor.Executor.backward)
