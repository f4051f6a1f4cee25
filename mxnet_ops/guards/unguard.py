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

from clgraft.mxnet_ops.guards.guard import CORE_SUFFIX, MARK, is_grafted, load_unguarded


def unguard_graph(graph: dict[str, Any]) -> int:
    """Take the guards out of a symbol's JSON graph, in place; those inside of control flow stay.

    A grafted operator whose guard carried its name gets it back, so that outputs keep theirs.

    Returns
    -------
    int
        How many were taken out.
    """
    old = graph["nodes"]
    heads = {entry[0] for entry in graph["heads"]}
    nodes: list[dict[str, Any]] = []
    entries: dict[int, list[int]] = {}  # a guard's number -> the new entry that it guarded
    place: dict[int, int] = {}  # another node's number -> its new one

    def moved(entry: list[int]) -> list[int]:
        return entries.get(entry[0]) or [place[entry[0]], *entry[1:]]

    for number, node in enumerate(old):
        inputs = [moved(entry) for entry in node["inputs"]]
        attributes = node.get("attrs", {})
        # a guard at the end of the graph may carry the name of an operator inside of a region
        if MARK not in attributes or (number in heads and inputs[0][1] and _is_region(nodes[inputs[0][0]])):
            place[number] = len(nodes)
            nodes.append({**node, "inputs": inputs})
            continue
        entries[number] = inputs[0]
        source = nodes[inputs[0][0]]
        if source["name"] == node["name"] + CORE_SUFFIX and is_grafted(source.get("attrs", {}).get("op_type")):
            source["name"] = node["name"]
    graph["nodes"] = nodes
    graph["heads"] = [moved(entry) for entry in graph["heads"]]
    graph["arg_nodes"] = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph.pop("node_row_ptr", None)
    return len(entries)


def _is_region(node: dict[str, Any]) -> bool:
    return bool(node.get("attrs", {}).get("op_type") == "ocl_region")


def unguard_symbol(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Give a symbol without guards, for an executor alone; the same object if there are none."""
    text = symbol.tojson()
    if MARK not in text:
        return symbol
    graph = json.loads(text)
    return load_unguarded(json.dumps(graph)) if unguard_graph(graph) else symbol


def _binding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bind(self: mx.sym.Symbol, *arguments: Any, **kwargs: Any) -> Any:
        return original(unguard_symbol(self), *arguments, **kwargs)

    return bind


def install() -> None:
    """Have executors bound without guards; once per process."""
    for name in ("bind", "simple_bind"):
        original = getattr(mx.sym.Symbol, name)
        if getattr(original, "__wrapped__", None) is None:
            setattr(mx.sym.Symbol, name, _binding(original))
