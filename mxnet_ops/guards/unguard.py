"""Takes the guards out of symbols that an executor runs: it alone keeps the arrays that a Custom operator reads.

The executor's operators own the plain copies of arrays in oneDNN's layouts, from one run to the next (see `guard` for
what happens elsewhere). There a guard would only cost a copy where its input and output cannot share memory: at the
ends of a graph.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Callable

import mxnet as mx

from clgraft.mxnet_ops.engine.graphs import replace_nodes
from clgraft.mxnet_ops.guards.guard import CORE_SUFFIX, MARK, guard_graph, guard_symbol, is_clgraft_type

SPARSE = ("row_sparse", "csr")


def unguard_graph(graph: dict[str, Any]) -> int:
    """Take the guards out of a symbol's JSON graph, in place; those inside of control flow stay.

    A clgraft operator whose guard carried its name gets it back, so that outputs keep theirs.

    Returns
    -------
    int
        How many were taken out.
    """
    old = graph["nodes"]
    nodes: list[dict[str, Any]] = []
    entries: dict[int, list[int]] = {}  # a guard's number -> the new entry that it guarded
    place: dict[int, int] = {}  # another node's number -> its new one

    def moved(entry: list[int]) -> list[int]:
        return entries.get(entry[0]) or [place[entry[0]], *entry[1:]]

    for number, node in enumerate(old):
        inputs = [moved(entry) for entry in node["inputs"]]
        attributes = node.get("attrs", {})
        if MARK not in attributes:
            place[number] = len(nodes)
            nodes.append({**node, "inputs": inputs})
            continue
        entries[number] = inputs[0]
        source = nodes[inputs[0][0]]
        if source["name"] == node["name"] + CORE_SUFFIX and is_clgraft_type(source.get("attrs", {}).get("op_type")):
            source["name"] = node["name"]
    replace_nodes(graph, nodes, [moved(entry) for entry in graph["heads"]])
    return len(entries)


def executor_symbol(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a symbol for an executor: no guards but inside of control flow, whose parts run as cached graphs.

    The same object if nothing changes.
    """
    text = symbol.tojson()
    if MARK not in text and '"subgraphs"' not in text:
        return symbol
    graph = json.loads(text)
    changed = sum(guard_graph(part) for node in graph["nodes"] for part in node.get("subgraphs", ()))
    return mx.sym.load_json(json.dumps(graph)) if unguard_graph(graph) + changed else symbol


def _is_sparse(value: Any) -> bool:
    """Return whether an argument of bind is, or holds, a sparse array or a word for one."""
    if isinstance(value, mx.nd.NDArray):
        return bool(value.stype != "default")
    if isinstance(value, str):
        return value in SPARSE
    if isinstance(value, dict):
        return any(_is_sparse(part) for part in value.values())
    return isinstance(value, (list, tuple)) and any(_is_sparse(part) for part in value)


def _binding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bind(self: mx.sym.Symbol, *arguments: Any, **kwargs: Any) -> Any:
        # an operator that is none of ours hands over a dense copy of a sparse array, with a warning: a guard is one
        sparse = any(_is_sparse(value) for value in (*arguments, *kwargs.values()))
        guarded = guard_symbol(self, sparse=True) if sparse else executor_symbol(self)
        return original(guarded, *arguments, **kwargs)

    return bind


def install() -> None:
    """Have executors bound without guards; once per process."""
    for name in ("bind", "simple_bind"):
        original = getattr(mx.sym.Symbol, name)
        if getattr(original, "__wrapped__", None) is None:
            setattr(mx.sym.Symbol, name, _binding(original))
