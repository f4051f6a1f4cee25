"""MXNet's graphs as JSON: nodes, each after its inputs; entries (node, output, version) name what they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entries = Sequence[Sequence[int]]


def replace_nodes(graph: dict[str, Any], nodes: Sequence[Mapping[str, Any]], heads: Entries) -> None:
    """Replace a graph's nodes and outputs, in place, with what follows from them."""
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    graph.update(nodes=nodes, arg_nodes=variables, heads=heads)
    graph.pop("node_row_ptr", None)  # MXNet counts again


def with_nodes(graph: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], heads: Entries) -> dict[str, Any]:
    """Return a graph with other nodes and outputs."""
    found = dict(graph)
    replace_nodes(found, nodes, heads)
    return found


def moved(entries: Entries, places: Mapping[int, int]) -> list[list[int]]:
    """Return entries with other numbers of their nodes."""
    return [[places[entry[0]], *entry[1:]] for entry in entries]
