"""What the swap knows of the dtypes of a graph: clgraft operators take real numbers, many of MXNet's also whole ones.

A graph mostly does not say of what type its variables are. But MXNet's convolutions, norms, dense layers and other
operators take real numbers alone, and most operators have inputs and outputs of one type: what is tied to a real number
is real. An operator on values that may as well be indices, masks or shapes stays MXNet's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import mxnet as mx
import numpy as np

from clgraft.mxnet_ops.engine.operator import FAMILIES
from clgraft.mxnet_ops.swap.asked import Key, graph_of, key_of
from clgraft.mxnet_ops.swap.attributes import Kept
from clgraft.mxnet_ops.swap.table import is_real, is_typeless, plain_name

FLOATS = ("float32", "float16", "float64")
DENSE = ("0", "-1", None)
# operators of MXNet's own whose output has the type of their first input
PASSING = {
    *("BlockGrad", "Flatten", "Reshape", "_copy", "expand_dims", "flatten", "identity", "reshape", "slice_like"),
    *("squeeze", "broadcast_to", "broadcast_like", "broadcast_axis", "reverse", "take", "pick"),
    *("SequenceMask", "make_loss"),
}
# operators whose inputs but the first may be whole numbers
FIRST_ALONE = ("softmax", "log_softmax", "softmin", "SequenceMask")
# operators that make another type of real numbers
CASTS = ("Cast", "cast", "amp_cast", "amp_multicast")
Entry = tuple[int, int]  # a node and its output


def name_of(dtype: Any) -> str:
    """Return the name of a type, which MXNet's bfloat16 has as that of its one field."""
    found = np.dtype(dtype)
    return found.names[0] if found.names else found.name


class Dtypes:
    """What is known of the values of a symbol's graph.

    Parameters
    ----------
    symbol : mx.sym.Symbol
    nodes : sequence of mappings
        Of its JSON graph, before any of them is replaced.
    given : mapping of str to dtype, optional
        Of variables, by name, where their arrays are there already.
    """

    def __init__(
        self, symbol: mx.sym.Symbol, nodes: Sequence[Mapping[str, Any]], given: Mapping[str, Any] | None = None
    ) -> None:
        self._nodes = nodes
        self._found: dict[Entry, str] = {}  # dtypes that the graph alone tells
        self._parent: dict[Entry, Entry] = {}
        self._reals: set[Entry] = set()
        self._certain: dict[Entry, str] = {}  # those that it tells whatever open variables are
        self._idle_casts: set[int] = set()  # casts to the type that there is
        self._others: list[int] = []  # operators of MXNet's own whose output may have a dtype other than their input's
        self._infer(symbol, dict(given or {}))
        for number, node in enumerate(nodes):
            self._tie(number, node)
        for entry in [entry for entry, dtype in self._found.items() if dtype in FLOATS]:
            self._reals.add(self._root(entry))
        self._reals = {self._root(entry) for entry in self._reals}
        while self._follow_others():
            pass
        self._casts = any(
            node["op"] in CASTS and number not in self._idle_casts and _makes_reals(node)
            for number, node in enumerate(nodes)
        )

    def expect_reals(self, number: int) -> None:
        """Raise `Kept` if the inputs of a node are other than dense arrays of real numbers."""
        real = self._real_inputs(number)
        for entry in self._nodes[number]["inputs"]:
            dtype = self._found.get((entry[0], entry[1]))
            if (entry[0], entry[1]) in real and dtype is not None and dtype not in FLOATS:
                raise Kept(f"its inputs are {dtype}")
            if self._nodes[entry[0]].get("attrs", {}).get("__storage_type__") not in DENSE:
                raise Kept("its inputs are sparse")

    def expect_nothing_else(self, number: int) -> None:
        """Raise `Kept` if the inputs of a node may be of dtypes that its clgraft operator does not take."""
        node = self._nodes[number]
        if not node["inputs"]:
            return
        first = self._root((node["inputs"][0][0], node["inputs"][0][1]))
        if is_typeless(node["op"]) and first not in self._reals:
            raise Kept(f"it may be of whole numbers: the dtype of {self._variable(number)!r} is not known")

    def expect_one_dtype(self, number: int) -> None:
        """Raise `Kept` unless all inputs of a node and its output are known to be real numbers, of one dtype."""
        entries = [*self._real_inputs(number), (number, 0)]
        roots = {self._root(entry) for entry in entries}
        if not roots <= self._reals:
            raise Kept(f"it may be of whole numbers: the dtype of {self._variable(number)!r} is not known")
        if self._casts and len(roots) > 1:
            raise Kept("its inputs may be of several dtypes: the graph has casts")

    def _real_inputs(self, number: int) -> list[Entry]:
        """Return the inputs of a node that its operator takes as real numbers, if it takes any."""
        node = self._nodes[number]
        inputs = [(entry[0], entry[1]) for entry in node["inputs"]]
        return inputs[:1] if plain_name(node["op"]) in FIRST_ALONE else inputs

    def _variable(self, number: int) -> str:
        """Return the name of the variable, or of the operator, from which the first input of a node comes."""
        node = self._nodes[number]
        while node["inputs"] and (is_typeless(node["op"]) or node["op"] in PASSING):
            node = self._nodes[node["inputs"][0][0]]
        return str(node["name"])

    def _root(self, entry: Entry) -> Entry:
        while entry in self._parent:
            entry = self._parent[entry]
        return entry

    def _join(self, first: Entry, second: Entry) -> None:
        one, other = self._root(first), self._root(second)
        if one != other:
            self._parent[other] = one

    def _tie(self, number: int, node: Mapping[str, Any]) -> None:
        inputs = [(entry[0], entry[1]) for entry in node["inputs"]]
        name, output = plain_name(node["op"]), (number, 0)
        attributes = node.get("attrs", {})
        if name == "null":
            return
        if is_real(name) or (name == "Custom" and attributes.get("op_type") in FAMILIES):
            self._reals.update(self._real_inputs(number))
            self._reals.update((number, place) for place in range(_outputs_read(self._nodes, number)))
        elif is_typeless(name):
            for place in range(_outputs_read(self._nodes, number)):
                self._join(output, (number, place))
            for entry in inputs:
                self._join(output, entry)
        elif name in PASSING:
            self._join(output, inputs[0])
        elif name in CASTS and self._is_idle(number, inputs):
            self._idle_casts.add(number)
            for place, entry in enumerate(inputs):
                self._join((number, place), entry)
        else:
            self._others.append(number)
            for place, dtype in enumerate(_made_of("int32", node["op"], key_of(attributes), len(inputs))):
                if dtype in FLOATS:
                    self._reals.add((number, place))

    def _is_idle(self, number: int, inputs: Sequence[Entry]) -> bool:
        """Return whether a cast makes the type that its inputs are known to have."""
        found = [self._certain.get(entry) for entry in (*inputs, *((number, place) for place in range(len(inputs))))]
        return None not in found and len(set(found)) == 1

    def _follow_others(self) -> bool:
        """Take what operators of MXNet's own make of real numbers for what it is, and return whether that was news."""
        before = len(self._reals)
        for number in self._others:
            node = self._nodes[number]
            if all(self._root((entry[0], entry[1])) in self._reals for entry in node["inputs"]):
                made = _made_of("float32", node["op"], key_of(node.get("attrs", {})), len(node["inputs"]))
                self._reals |= {self._root((number, place)) for place, dtype in enumerate(made) if dtype in FLOATS}
        return len(self._reals) > before

    def _infer(self, symbol: mx.sym.Symbol, given: dict[str, Any]) -> None:
        """Find the dtypes that follow from the graph alone: those of casts, indices and constants.

        Some operators refuse to be asked while the type of an input is open: variables count as float32, and as not
        known.
        """
        internals, declared = symbol.get_internals(), symbol.attr_dict()
        names = symbol.list_inputs()
        known = {name: np.dtype(dtype) for name, dtype in given.items() if name in names and dtype is not None}
        open_ = [name for name in names if "__dtype__" not in declared.get(name, {}) and name not in known]
        if any(node["op"] in CASTS for node in self._nodes):
            self._certain = self._certain_of(internals, known, open_)
        try:
            _, found, _ = internals.infer_type_partial(**known, **dict.fromkeys(open_, np.float32))
        except mx.MXNetError:
            try:
                _, found, _ = internals.infer_type_partial(**known)
            except mx.MXNetError:
                found = None
        heads = iter(zip(internals.list_outputs(), found or ()))
        places: dict[str, list[Any]] = {}
        for name, dtype in heads:
            places.setdefault(name, []).append(dtype)
        for number, node in enumerate(self._nodes):
            self._take(number, node, places, set(open_))

    def _certain_of(self, internals: mx.sym.Symbol, known: Mapping[str, Any], open_: Sequence[str]) -> dict[Entry, str]:
        """Return the dtypes of values that are the same for single and for half precision of the open variables."""
        made = []
        for dtype in (np.float32, np.float16):
            try:
                made.append(internals.infer_type_partial(**known, **dict.fromkeys(open_, dtype))[1] or ())
            except mx.MXNetError:
                return {}
        numbers = {str(node["name"]): number for number, node in enumerate(self._nodes)}
        found = {}
        for name, *dtypes in zip(internals.list_outputs(), *made):
            if None in dtypes or np.dtype(dtypes[0]) != np.dtype(dtypes[1]):
                continue
            owner, _, output = name.rpartition("_output")
            place = int(output) if output.isdigit() else 0
            number = numbers.get(owner if owner else name)
            if number is not None:
                found[number, place] = name_of(dtypes[0])
        return found

    def _take(self, number: int, node: Mapping[str, Any], places: Mapping[str, Sequence[Any]], open_: set[str]) -> None:
        name = str(node["name"])
        if node["op"] == "null":
            if name not in open_ and places.get(name) and places[name][0] is not None:
                self._found[number, 0] = name_of(places[name][0])
            return
        for place in range(max(1, _outputs_read(self._nodes, number))):
            for word in (f"{name}_output{place}", *((f"{name}_output",) if not place else ())):
                if places.get(word) and places[word][0] is not None:
                    dtype = name_of(places[word][0])
                    if dtype not in ("float32",) or not open_:  # float32 may be what an open variable was taken for
                        self._found[number, place] = dtype


def _makes_reals(cast: Mapping[str, Any]) -> bool:
    """Return whether a cast makes real numbers."""
    return cast.get("attrs", {}).get("dtype", FLOATS[0]) in (*FLOATS, "bfloat16")


def _outputs_read(nodes: Sequence[Mapping[str, Any]], number: int) -> int:
    """Return how many outputs of a node are read, up to the last of them; at least one."""
    return 1 + max((entry[1] for node in nodes for entry in node["inputs"] if entry[0] == number), default=0)


@lru_cache(maxsize=1024)
def _made_of(dtype: str, operator: str, attributes: Key, inputs: int) -> tuple[str, ...]:
    """Return the dtypes of an operator's outputs where all inputs are of one dtype; nothing if MXNet does not say."""
    try:
        symbol = graph_of(operator, attributes, inputs)
        _, found, _ = symbol.infer_type_partial(**{f"x{i}": np.dtype(dtype) for i in range(inputs)})
    except (mx.MXNetError, ValueError):
        return ()
    return tuple("" if dtype is None else name_of(dtype) for dtype in found or ())
