"""Makes one operator of connected clgraft operators: ``ocl_region``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clgraft.mxnet_ops.engine.operator import FAMILIES, operator_of
from clgraft.mxnet_ops.swap.report import Report

REGION = "ocl_region"
MOST_OUTPUTS = 60  # C marks outputs whose gradients are not read in 64 bits
Entry = tuple[int, int]  # a node and its output


def form_regions(graph: dict[str, Any], report: Report) -> None:
    """Replace connected clgraft operators of a symbol's JSON graph, in place; it has no guards yet.

    A region is convex: no path leaves it and comes back. Values that are read outside of it, or that are outputs of
    the symbol, are its outputs. One operator alone stays as it is.
    """
    nodes = graph["nodes"]
    heads = {(entry[0], entry[1]) for entry in graph["heads"]}
    groups = [group for group in _convex(nodes, _joinable(nodes, heads)) if len(group) > 1]
    readers: dict[Entry, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        for entry in node["inputs"]:
            readers[entry[0], entry[1]].append(number)
    made: list[tuple[list[int], dict[str, Any], list[Entry]]] = []
    for group in groups:
        members = set(group)
        outputs = [
            (number, output)
            for number in group
            for output in range(len(operator_of(nodes[number]).outputs))
            if (number, output) in heads or any(reader not in members for reader in readers[number, output])
        ]
        inputs, auxiliary = _inputs(group, nodes)
        if not outputs or len(outputs) > MOST_OUTPUTS or set(inputs) & set(auxiliary):
            continue
        first = nodes[outputs[0][0]]
        name = first["name"]
        region = {
            "op": "Custom",
            "name": name,
            "attrs": {
                **_hidden(first),
                "graph": _text(group, nodes, inputs + auxiliary, outputs),
                "op_type": REGION,
            },
            "inputs": [[*entry, 0] for entry in inputs + auxiliary],
        }
        made.append((group, region, outputs))
        report.regions[name] = [nodes[number]["name"] for number in group]
    _put(graph, made)


def _hidden(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a node's scope, such as the layout of its output."""
    return {key: value for key, value in node.get("attrs", {}).items() if key.startswith("__")}


def _is_clgraft_node(node: Mapping[str, Any]) -> bool:
    op_type = node.get("attrs", {}).get("op_type")
    return node["op"] == "Custom" and op_type in FAMILIES and op_type != REGION


def _joinable(nodes: Sequence[Mapping[str, Any]], heads: Collection[Entry]) -> set[int]:
    """Return the nodes that can be in a region: clgraft operators, unless outputs of the symbol have names of theirs.

    MXNet names outputs after their node. An operator of several outputs, one of which is the symbol's, stays a node.
    """
    shown = {entry[0] for entry in heads}
    ours = {number for number, node in enumerate(nodes) if _is_clgraft_node(node)}
    return {number for number in ours if number not in shown or len(operator_of(nodes[number]).outputs) == 1}


def _convex(nodes: Sequence[Mapping[str, Any]], joinable: Collection[int]) -> list[list[int]]:
    """Return the clgraft operators in groups: joined along edges as long as no path leaves a group and comes back."""
    group_of = list(range(len(nodes)))
    members = {number: {number} for number in range(len(nodes))}
    sources = [{entry[0] for entry in node["inputs"]} for node in nodes]
    readers: list[set[int]] = [set() for _ in nodes]
    for number, entries in enumerate(sources):
        for source in entries:
            readers[source].add(number)

    def leads_around(first: int, second: int) -> bool:
        """Return whether a path leads from one group to another one through a third."""
        waiting = {group_of[r] for m in members[first] for r in readers[m]} - {first, second}
        seen = set(waiting)
        while waiting:
            found = {group_of[r] for m in members[waiting.pop()] for r in readers[m]}
            if second in found:
                return True
            waiting |= found - seen
            seen |= found
        return False

    for number in range(len(nodes)):
        if number not in joinable:
            continue
        for source in sorted(sources[number]):
            first, second = group_of[source], group_of[number]
            if first != second and source in joinable and not leads_around(first, second):
                for member in members.pop(second):
                    group_of[member] = first
                    members[first].add(member)
    return [sorted(group) for group in members.values() if min(group) in joinable]


def _inputs(group: Sequence[int], nodes: Sequence[Mapping[str, Any]]) -> tuple[list[Entry], list[Entry]]:
    """Return what a group reads from outside, and its auxiliary states, in the order of the symbol."""
    inputs: set[Entry] = set()
    auxiliary: set[Entry] = set()
    members = set(group)
    for number in group:
        count = len(operator_of(nodes[number]).arguments)
        for place, entry in enumerate(nodes[number]["inputs"]):
            if entry[0] not in members:
                (inputs if place < count else auxiliary).add((entry[0], entry[1]))
    return sorted(inputs), sorted(auxiliary)


def _text(
    group: Sequence[int], nodes: Sequence[Mapping[str, Any]], inputs: Sequence[Entry], outputs: Sequence[Entry]
) -> str:
    """Return the group as a symbol's JSON."""
    place: dict[Entry, Entry] = {}
    inner: list[dict[str, Any]] = []
    for source, output in inputs:
        node = nodes[source]
        place[source, output] = len(inner), 0
        name = node["name"] if node["op"] == "null" else f"{node['name']}_output{output or ''}"
        inner.append({"op": "null", "name": name, "inputs": []})
    for number in group:
        node = nodes[number]
        for output in range(len(operator_of(node).outputs)):
            place[number, output] = len(inner), output
        entries = [[*place[entry[0], entry[1]], 0] for entry in node["inputs"]]
        attributes = {key: value for key, value in node["attrs"].items() if not key.startswith("__")}
        inner.append({"op": "Custom", "name": node["name"], "attrs": attributes, "inputs": entries})
    heads = [[*place[entry], 0] for entry in outputs]
    found = {"nodes": inner, "arg_nodes": list(range(len(inputs))), "heads": heads}
    return json.dumps(found, separators=(",", ":"))


def _put(graph: dict[str, Any], made: Sequence[tuple[list[int], dict[str, Any], list[Entry]]]) -> None:
    """Put regions in the places of their operators, in an order in which every node follows its inputs."""
    old = graph["nodes"]
    region_of = {number: index for index, (group, _, _) in enumerate(made) for number in group}
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}
    region_place: dict[int, int] = {}
    copies: dict[Entry, int] = {}

    def moved(entry: Sequence[int]) -> list[int]:
        index = region_of.get(entry[0])
        if index is None:
            return [place[entry[0]], *entry[1:]]
        return [region_place[index], made[index][2].index((entry[0], entry[1])), *entry[2:]]

    def named(entry: Sequence[int]) -> list[int]:
        """Return a head; a copy gives it the name of its operator if the region does not."""
        found = moved(entry)
        if entry[0] not in region_of or not found[1]:
            return found
        key = (entry[0], entry[1])
        if key not in copies:
            copies[key] = len(nodes)
            source = old[entry[0]]
            nodes.append({"op": "_copy", "name": source["name"], "attrs": _hidden(source), "inputs": [found]})
        return [copies[key], 0, 0]

    def visit(number: int) -> None:
        waiting = [number]
        while waiting:
            last = waiting[-1]
            index = region_of.get(last)
            node = old[last] if index is None else made[index][1]
            if (last in place) if index is None else (index in region_place):
                waiting.pop()
                continue
            missing = [
                e[0]
                for e in node["inputs"]
                if (e[0] not in place if e[0] not in region_of else region_of[e[0]] not in region_place)
            ]
            if missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if index is None:
                place[last] = len(nodes)
            else:
                region_place[index] = len(nodes)
            nodes.append({**node, "inputs": [moved(entry) for entry in node["inputs"]]})

    for entry in graph["heads"]:
        visit(entry[0])
    graph["heads"] = [named(entry) for entry in graph["heads"]]
    graph["nodes"] = nodes
    graph["arg_nodes"] = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph.pop("node_row_ptr", None)
