"""Copies of symbols whose regions have residents in the place of inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from clgraft.mxnet_ops.engine.graphs import moved, with_nodes
from clgraft.mxnet_ops.engine.operator import operator_of
from clgraft.mxnet_ops.engine.residents import DTYPE, Resident
from clgraft.mxnet_ops.engine.results import Use
from clgraft.mxnet_ops.regions.region import OUTSIDE, RegionOperator
from clgraft.mxnet_ops.regions.residents import Residents, residents_of

TOKEN, STILL = "clgraft_token", "_still"


def _region_of(node: Mapping[str, Any]) -> RegionOperator | None:
    if node["op"] != "Custom" or node["attrs"].get("op_type") != RegionOperator.op_type:
        return None
    found = operator_of(node)
    assert isinstance(found, RegionOperator)
    return found


def read_by_regions(graph: Mapping[str, Any]) -> set[str]:
    """Return the variables of a symbol's JSON graph that regions alone read, each of them once at most."""
    nodes = graph["nodes"]
    found: set[int] = set()
    others = {entry[0] for entry in graph["heads"]}
    for node in nodes:
        places = [entry[0] for entry in node["inputs"]]
        if _region_of(node) is None:
            others.update(places)
        else:
            found.update(places)
            others.update(place for place in places if places.count(place) > 1)
    return {nodes[place]["name"] for place in found - others if nodes[place]["op"] == "null"}


def _type_of(region: RegionOperator, own: Mapping[str, Resident], half: bool) -> str:
    """Return the type of a region's data; empty if its residents do not tell."""
    data = {name for place, name in enumerate(region.names) if (OUTSIDE, place) not in region.singles[0]}
    kinds = {resident.dtype for name, resident in own.items() if name in data}
    return kinds.pop() if len(kinds) == 1 else "" if kinds or half else DTYPE


def with_residents(
    graph: Mapping[str, Any],
    residents: Mapping[str, Resident],
    half: bool,
    learned: Collection[str] | None = None,
) -> tuple[dict[str, Any], list[Residents], dict[str, Any]]:
    """Return a copy of a symbol's JSON graph whose regions have residents.

    Parameters
    ----------
    graph : dict
    residents : mapping of str to Resident
        By the names of variables that regions alone read.
    half : bool
        Whether any array is float16. Then a region has residents if one of them shows the type of its data.
    learned : collection of str, optional
        Variables with gradients. A region that none of them leads to has no backward: its tokens, whose names end with
        `STILL`, have no gradient. By default all may have one.

    Returns
    -------
    tuple
        The graph; what its regions have, which has to live as long; and the tokens' variables with their arrays.
    """
    old = graph["nodes"]
    made: list[Residents] = []
    found_tokens: dict[str, Any] = {}
    nodes: list[dict[str, Any]] = []
    changed: dict[int, tuple[dict[str, str], list[Any], list[str]]] = {}
    led_to: set[int] = set()
    for number, node in enumerate(old):
        if learned is None or node["name"] in learned or any(entry[0] in led_to for entry in node["inputs"]):
            led_to.add(number)
        region = _region_of(node)
        if region is None:
            continue
        names = (*region.arguments, *region.auxiliary)
        own = {
            name: residents[old[entry[0]]["name"]]
            for name, entry in zip(names, node["inputs"])
            if old[entry[0]]["op"] == "null" and old[entry[0]]["name"] in residents
        }
        dtype = _type_of(region, own, half)
        if not own or not dtype:
            continue
        homes = dict.fromkeys(resident.home for resident in own.values())
        having = Residents(own, homes, [name for name in region.auxiliary if name in own])
        made.append(having)
        ending = dtype if number in led_to else dtype + STILL
        takes = {f"{TOKEN}{home.number}_{ending}": home.token(dtype) for home in homes}
        found_tokens.update(takes)
        attributes = {key: value for key, value in node["attrs"].items() if key != "frozen"}
        inputs = zip(names, node["inputs"])
        split = len(region.arguments)
        kept = [(place, entry) for place, (name, entry) in enumerate(inputs) if name not in own]
        changed[number] = (
            {**attributes, "residents": having.text},
            [[entry for place, entry in kept if place < split], [entry for place, entry in kept if place >= split]],
            list(takes),
        )
    token_places = {}
    for name in found_tokens:
        token_places[name] = len(nodes)
        nodes.append({"op": "null", "name": name, "inputs": []})
    read = {entry[0] for entry in graph["heads"]}
    for number, node in enumerate(old):
        entries = [entry for part in changed[number][1] for entry in part] if number in changed else node["inputs"]
        read.update(entry[0] for entry in entries)
    place: dict[int, int] = {}

    for number, node in enumerate(old):
        if node["op"] == "null" and number not in read:
            continue
        if number in changed:
            attributes, (arguments, auxiliary), takes_here = changed[number]
            tokens = [[token_places[name], 0, 0] for name in takes_here]
            entries = [*moved(arguments, place), *tokens, *moved(auxiliary, place)]
            node = {**node, "attrs": attributes, "inputs": entries}
        else:
            node = {**node, "inputs": moved(node["inputs"], place)}
        place[number] = len(nodes)
        nodes.append(node)
    return with_nodes(graph, nodes, moved(graph["heads"], place)), made, found_tokens


class Head(NamedTuple):
    """A head of a graph that a region may leave on the device: its output at a place."""

    region: Residents
    place: int
    use: Use


def left_heads(graph: Mapping[str, Any]) -> dict[int, Head]:
    """Return the heads of a graph with residents that nothing in it reads, and no backward of a region, by number."""
    read = [
        tuple(entry[:2]) for entries in (graph["heads"], *(n["inputs"] for n in graph["nodes"])) for entry in entries
    ]
    found = {}
    for number, (node, place, *_) in enumerate(graph["heads"]):
        region = _region_of(graph["nodes"][node])
        if region is None or region.resident is None or region.backward_reads_outputs or read.count((node, place)) > 1:
            continue
        own = residents_of(region.resident)
        found[number] = Head(own, place, Use(own.homes[0]))
    return found
