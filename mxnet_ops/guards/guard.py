"""Keeps MXNet from handing clgraft operators memory that it has already freed.

MXNet runs a Custom operator on a thread of its own. An input, or the gradient of an output, that lies in a layout of
oneDNN is first reordered into a temporary array, which is freed as soon as the operator has been *queued* (imperative
mode and cached graphs; the symbolic executor keeps it). So no such array may reach a clgraft operator.

`squeeze` over no axes is an operator that is none of oneDNN's, forward or backward: it gives the plain layout, keeps
shape, values and gradients, and shares its input's memory wherever MXNet plans memory. One stands before each input of
more than one axis, and one after each output: that one guards the gradient that comes back. A parameter whose shape
is inferred gets a product with 1 instead, because shapes do not pass backwards through `squeeze`.

A guard of a graph's own input is a copy, because MXNet plans no memory for it. Inputs that operators of this package
alone read, such as parameters, have none: they are brought into the plain layout in front of the graph
(`clgraft.mxnet_ops.engine.plain`), where this MXNet's arrays are known.

Without oneDNN (``MXNET_MKLDNN_ENABLED=0``) no array has such a layout, and nothing is guarded.

They get there by themselves: `mx.nd.Custom` puts them around every ``op_type="ocl_..."``, and a symbol gets them when
a cached graph is made of it. Symbols themselves have none, so names, attributes and the number of nodes stay.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import mxnet as mx
from mxnet.base import MXNetError

from clgraft import core
from clgraft.core import settings
from clgraft.mxnet_ops.engine import backward_writes, plain
from clgraft.mxnet_ops.engine.errors import as_mxnets, last_error, telling
from clgraft.mxnet_ops.engine.graphs import replace_nodes
from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator, find_operator, operator_of
from clgraft.mxnet_ops.guards.unsized import unsized_nodes

MARK = "__clgraft_guard__"
# guards: of arrays whose shapes are known, of those whose shapes follow from what reads them, and of sparse ones
PLAIN, SHAPED = ("squeeze", {"axis": "()"}), ("_mul_scalar", {"scalar": "1.0"})
DENSE = ("cast_storage", {"stype": "default"})
CORE_SUFFIX = "_ocl"  # ends the name of a Custom node whose guarded output carries the node's own name
# as MXNet reads it, which does so once: whether its operators may leave arrays in oneDNN's layouts
ONEDNN = settings.MXNET_MKLDNN_ENABLED.text().lower() not in ("0", "false")
COPIES = ONEDNN and not plain.AVAILABLE  # whether cached graphs copy parameters
OWN_KEYS = ("op_type", "name", "out", "attr")


def is_clgraft_type(op_type: str | None) -> bool:
    """Return whether an ``op_type`` of Custom is one of this package."""
    return op_type in FAMILIES


def _arrange(operator: Operator, data: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    """Return the inputs in the operator's order: by position, then by name; None where nothing was given."""
    names = operator.arguments + operator.auxiliary
    if len(data) > len(names):
        raise operator.error("inputs", f"{len(data)} of them", f"at most {len(names)}: {names}")
    places: list[Any] = list(data) + [None] * (len(names) - len(data))
    for name, value in named.items():
        place = names.index(name)
        if places[place] is not None:
            raise operator.error(name, "twice", "it by position or by name")
        places[place] = value
    return places


def _sort(kwargs: dict[str, Any], kind: type) -> tuple[Operator, dict[str, Any], dict[str, Any]]:
    """Return the operator, its inputs by name, and its attributes."""
    named = {key: value for key, value in kwargs.items() if isinstance(value, kind) and key not in OWN_KEYS}
    attributes = {key: value for key, value in kwargs.items() if key not in named and key not in OWN_KEYS}
    operator = find_operator(kwargs["op_type"], attributes)
    for name in named:
        if name not in operator.arguments + operator.auxiliary:
            raise operator.error("input", repr(name), f"one of {operator.arguments + operator.auxiliary}")
    return operator, named, attributes


def _expect_sizes(operator: Operator, names: Sequence[str], inputs: Sequence[Any]) -> None:
    """Refuse empty inputs where MXNet takes a size of 0 for one that is not known."""
    if not mx.util.is_np_shape():
        for name, value in zip(names, inputs):
            if 0 in value.shape:
                expected = "no size of 0, or mx.util.np_shape(True), which lets MXNet have such arrays"
                raise operator.error(name, f"of shape {value.shape}", expected)


def _nd_custom(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def Custom(*data: Any, **kwargs: Any) -> Any:
        if not is_clgraft_type(kwargs.get("op_type")):
            return original(*data, **kwargs)
        operator, named, attributes = _sort(kwargs, mx.nd.NDArray)
        inputs = _arrange(operator, data, named)
        names = operator.arguments + operator.auxiliary
        for name, value in zip(names, inputs):
            if value is None:
                raise operator.error(name, "nothing", f"inputs {names}")
        # the guard after an output is there for the gradient that comes back
        recording, out = mx.autograd.is_recording(), kwargs.get("out")
        guarded = recording and ONEDNN
        last_error()  # one that is left from a symbol whose shapes could not be inferred is not this call's
        try:
            for place, name in enumerate(operator.arguments):
                if ONEDNN and name not in operator.vectors:
                    inputs[place] = mx.nd.squeeze(inputs[place], axis=())
            outputs = original(*inputs, op_type=operator.op_type, out=None if guarded else out, **attributes)
        except MXNetError as failure:
            error = last_error()
            if isinstance(error, core.ClgraftError):
                raise as_mxnets(error) from failure
            _expect_sizes(operator, names, inputs)
            raise
        if not recording:
            return outputs
        states = inputs[len(operator.arguments) :]
        backward_writes.remember((operator.op_type,), ((state, 1) for state in states))
        if not guarded:
            return outputs
        if not isinstance(outputs, (list, tuple)):
            return mx.nd.squeeze(outputs, axis=(), out=out)
        outs = [None] * len(outputs) if out is None else out
        return [mx.nd.squeeze(value, axis=(), out=place) for value, place in zip(outputs, outs)]

    return Custom


def _current_names() -> mx.name.NameManager:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no other way gives the manager in force
        return mx.name.NameManager.current


def _sym_custom(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def Custom(*data: Any, **kwargs: Any) -> Any:
        if not is_clgraft_type(kwargs.get("op_type")):
            return original(*data, **kwargs)
        operator, named, attributes = _sort(kwargs, mx.sym.Symbol)
        inputs = _arrange(operator, data, named)
        name = _current_names().get(kwargs.get("name"), operator.op_type)
        with mx.name.NameManager():  # names are whole from here on, whatever prefix is in force
            for place, key in enumerate(operator.arguments + operator.auxiliary):
                if inputs[place] is None:
                    inputs[place] = mx.sym.var(f"{name}_{key}")
            return original(*inputs, name=name, op_type=operator.op_type, attr=kwargs.get("attr"), **attributes)

    return Custom


def guard_graph(graph: dict[str, Any], sparse: bool = False) -> int:
    """Add the missing guards to a symbol's JSON graph, in place.

    Every edge gets one that leads from any other node into a clgraft operator's input of more than one axis, or from
    a clgraft operator's output to any other node or out of the graph. Between two clgraft operators none is needed.
    With `sparse` inputs may be sparse arrays, of which guards make dense ones.

    Returns
    -------
    int
        How many were added.
    """
    if not (ONEDNN or sparse):
        return 0
    old = graph["nodes"]
    added = sum(guard_graph(part, sparse) for node in old for part in node.get("subgraphs", ()))
    nodes: list[dict[str, Any]] = []
    place: list[int] = []  # old number -> new number
    guards: dict[tuple[int, int], list[int]] = {}  # (old number, output) -> its guard's entry
    names = {node["name"] for node in old}
    is_ours = [node["op"] == "Custom" and is_clgraft_type(node.get("attrs", {}).get("op_type")) for node in old]
    heads = {(entry[0], entry[1]) for entry in graph["heads"]}
    native_readers = set(heads)
    for number, node in enumerate(old):
        if not is_ours[number]:
            native_readers |= {(e[0], e[1]) for e in node["inputs"] if not _is_guard(node)}
    inferred = _inferred_sources(old, is_ours)

    def free(name: str) -> str:
        while name in names:
            name += "_"
        names.add(name)
        return name

    def add_guard(source: int, output: int, name: str) -> list[int]:
        nonlocal added
        added += 1
        kinds = [(name, SHAPED if source in inferred else PLAIN)]
        if sparse and source in inferred:
            kinds.append((free(f"{name}_dense"), DENSE))
        entry = [place[source], output, 0]
        for own, (kind, attributes) in kinds:
            nodes.append({"op": kind, "name": own, "attrs": {**attributes, MARK: "1"}, "inputs": [entry]})
            entry = [len(nodes) - 1, 0, 0]
        guards[source, output] = [len(nodes) - 1, 0, 0]
        return guards[source, output]

    for number, node in enumerate(old):
        inputs = []
        needs = _guarded_inputs(node) if is_ours[number] else frozenset()
        for index, entry in enumerate(node["inputs"]):
            key = (entry[0], entry[1])
            if is_ours[number]:
                if index in needs and not is_ours[key[0]] and not _is_guard(old[key[0]]):
                    inputs.append(guards.get(key) or add_guard(*key, free(f"{old[key[0]]['name']}_guard")))
                    continue
            elif key in guards and is_ours[key[0]]:
                inputs.append(guards[key])
                continue
            inputs.append([place[entry[0]], *entry[1:]])
        place.append(len(nodes))
        nodes.append({**node, "inputs": inputs})
        if not is_ours[number]:
            continue
        for output in sorted(o for n, o in native_readers if n == number):
            name = node["name"]
            if output == 0:
                nodes[place[number]]["name"] = free(name + CORE_SUFFIX)
                add_guard(number, output, name)
            else:
                add_guard(number, output, free(f"{name}_guard{output}"))
    ends = [
        guards[e[0], e[1]] if is_ours[e[0]] and (e[0], e[1]) in guards else [place[e[0]], *e[1:]]
        for e in graph["heads"]
    ]
    replace_nodes(graph, nodes, ends)
    return added


def _is_guard(node: Mapping[str, Any]) -> bool:
    return MARK in node.get("attrs", {})


def _guarded_inputs(node: Mapping[str, Any]) -> frozenset[int]:
    operator = operator_of(node)
    return frozenset(i for i, name in enumerate(operator.arguments) if name not in operator.vectors)


def _inferred_sources(nodes: Sequence[Mapping[str, Any]], is_ours: Sequence[bool]) -> set[int]:
    """Return the variables, and the arrays of unknown sizes, whose shapes a clgraft operator infers."""
    found, unsized = set(), unsized_nodes(nodes)
    for node, ours in zip(nodes, is_ours):
        if ours:
            operator = operator_of(node)
            pairs = zip(node["inputs"], operator.arguments)
            sources = {entry[0] for entry, name in pairs if name in operator.inferred}
            found |= {source for source in sources if nodes[source]["op"] == "null" or source in unsized}
    return found


def guard_symbol(symbol: mx.sym.Symbol, sparse: bool = False) -> mx.sym.Symbol:
    """Return a symbol in which every clgraft operator is guarded; the same object if nothing was missing.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        Such as one from which a program that is not written in Python makes a cached graph.
    sparse : bool
        Whether its variables may be sparse arrays.
    """
    text = symbol.tojson()
    if "ocl_" not in text:
        return symbol
    graph = json.loads(text)
    return mx.sym.load_json(json.dumps(graph)) if guard_graph(graph, sparse) else symbol


def _mark_plain(graph: dict[str, Any]) -> list[int]:
    """Mark a symbol's variables that need no guards if their arrays are plain; return their places among its inputs.

    They are those that operators of this package alone read: one of MXNet's may reorder a weight while the graph runs.
    """
    nodes = graph["nodes"]
    own: set[int] = set()
    others = {entry[0] for entry in graph["heads"]}
    for node in nodes:
        if node["op"] == "Custom" and is_clgraft_type(node.get("attrs", {}).get("op_type")):
            guarded = _guarded_inputs(node)
            own.update(entry[0] for place, entry in enumerate(node["inputs"]) if place in guarded)
        else:
            others.update(entry[0] for entry in node["inputs"])
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    found = [place for place, number in enumerate(variables) if number in own - others]
    for place in found:
        node = nodes[variables[place]]
        node["attrs"] = {**node.get("attrs", {}), MARK: "1"}
    return found


def _for_plain(symbol: mx.sym.Symbol) -> tuple[mx.sym.Symbol, list[int]]:
    """Return a guarded symbol, and the places of its inputs that have to be in MXNet's plain layout."""
    text = symbol.tojson() if ONEDNN and not COPIES else ""
    if "ocl_" not in text:
        return guard_symbol(symbol), []
    graph = json.loads(text)
    places = _mark_plain(graph)
    changed = guard_graph(graph) or places
    return mx.sym.load_json(json.dumps(graph)) if changed else symbol, places


class CachedOp(backward_writes.CachedOp):
    """MXNet's cached graph, of the guarded symbol. What our operators alone read is plain when it runs."""

    def __init__(self, sym: mx.sym.Symbol, flags: Sequence[tuple[str, Any]] = (), **kwargs: Any) -> None:
        guarded, self._plain = _for_plain(sym)
        super().__init__(guarded, flags, **kwargs)
        learned = next((value for key, value in flags if key == "param_indices"), self._plain)
        self._learned = sorted({*map(int, learned)} & {*self._plain})
        self._recorded = plain.Recorded() if self._learned else None
        self._given = (sym, flags, kwargs)
        self._dense: Any = None  # what runs with sparse arrays

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._dense is not None:
            return self._dense(*args, **kwargs)
        if self._plain and len(args) > self._plain[-1]:
            plain.make_plain([args[place] for place in self._plain])
        try:
            result = super().__call__(*args, **kwargs)
            if self._recorded is not None and mx.autograd.is_recording():
                self._recorded.add(args[place] for place in self._learned)
            return result
        except MXNetError:
            if not self._op_types or all(array.stype == "default" for array in args):
                raise
        sym, flags, given = self._given
        self._dense = backward_writes.CachedOp(guard_symbol(sym, sparse=True), flags, **given)
        return self._dense(*args, **kwargs)


def _replace(modules: tuple[Any, ...], name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    native = getattr(modules[0], name)
    function = functools.wraps(native)(telling(wrap(native)))
    for module in modules:
        setattr(module, name, function)


def install() -> None:
    """Put the guards into MXNet's functions; once per process."""
    if getattr(mx.nd.Custom, "__wrapped__", None) is not None:
        return
    _replace((mx.nd, mx.nd.op, mx.nd.gen_op), "Custom", _nd_custom)
    _replace((mx.sym, mx.sym.op, mx.sym.gen_op), "Custom", _sym_custom)
    mx.nd.CachedOp = CachedOp
