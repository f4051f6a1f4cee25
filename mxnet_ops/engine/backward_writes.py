"""Lets MXNet's engine know what backward of an operator writes besides gradients: moving statistics.

MXNet's own batch norm declares that its backward changes the moving statistics, so that those who read them wait for
it. A Custom operator cannot. Its backward does *read* its auxiliary states as far as the engine knows: a write that is
queued after the backward waits for it, and readers that come later wait for that write. Such a write, which changes
nothing, follows here on every backward, for the auxiliary states of executors and of recorded calls.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import mxnet as mx

from clgraft.mxnet_ops.engine import plain
from clgraft.mxnet_ops.engine.changes import changed
from clgraft.mxnet_ops.engine.errors import OperatorError
from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator

_SECOND_ORDER = re.compile(
    r"Operator _backward_(squeeze|Custom|mul_scalar) is non-differentiable|CachedOp does not support higher order"
)

# called before a backward, with whether only the gradients of given arrays are wanted; what it returns is called after
AROUND: list[Callable[[bool], Callable[[], None]]] = []

_lock = threading.Lock()
_recording = threading.local()  # op_types: of the calls recorded in this thread since its last backward
_recorded: dict[int, list[Any]] = {}  # handle -> the array, and how many more backwards it is remembered for


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


def remember(op_types: Iterable[str], arrays: Iterable[Any]) -> None:
    """Keep the names and the auxiliary states of a recorded call until its backward comes."""
    _recording.__dict__.setdefault("op_types", {}).update(dict.fromkeys(op_types, True))
    with _lock:
        for array in arrays:
            _recorded[array.handle.value] = [array, plain.BACKWARDS]


def announce_recorded() -> None:
    """Queue a write to each state that is remembered."""
    with _lock:
        arrays = [entry[0] for entry in _recorded.values()]
        for entry in _recorded.values():
            entry[1] -= 1
        for handle in [handle for handle, entry in _recorded.items() if not entry[1]]:
            del _recorded[handle]
    announce(arrays)


def _changes_states(family: type[Operator] | None) -> bool:
    return family is not None and family.auxiliary is not Operator.auxiliary


def state_names(symbol: mx.sym.Symbol) -> list[str]:
    """Return the names of the auxiliary states that operators of this package change in backward."""
    text = symbol.tojson()
    if not any(f'"{op_type}"' in text for op_type, family in FAMILIES.items() if _changes_states(family)):
        return []
    nodes, found = json.loads(text)["nodes"], []
    states = set(symbol.list_auxiliary_states())
    for node in nodes:
        if node["op"] == "Custom" and _changes_states(FAMILIES.get(node["attrs"].get("op_type"))):
            found += [nodes[entry[0]]["name"] for entry in node["inputs"] if nodes[entry[0]]["name"] in states]
    return list(dict.fromkeys(found))


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
        self._states = [names.index(name) for name in state_names(sym)]
        self._op_types = clgraft_types(sym)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        if self._op_types and mx.autograd.is_recording():
            remember(self._op_types, (args[place] for place in self._states))
        return result


def _recorded_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        op_types = ", ".join(_recording.__dict__.get("op_types", {}))
        # first: what these wait for would else wait for all that the next line's operation does
        ends = [begin(original.__name__ == "grad") for begin in AROUND]
        plain.before_backward()
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
            for end in ends:
                end()
        if original.__name__ != "grad":  # the graph of `grad` may be differentiated again
            _recording.__dict__.pop("op_types", None)
        if _recorded:
            announce_recorded()
        return result

    return backward


def _executor_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(self: mx.executor.Executor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        found = self.__dict__.get("_clgraft_states")
        if found is None:
            found = self._clgraft_states = [self.aux_dict[name] for name in state_names(self._symbol)]
        announce(found)
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
