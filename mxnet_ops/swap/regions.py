"""Makes one operator of connected clgraft operators: ``ocl_region``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from clgraft.mxnet_ops.engine.graphs import replace_nodes
from clgraft.mxnet_ops.engine.operator import FAMILIES, POINTWISE, operator_of
from clgraft.mxnet_ops.operators.inner import Inner
from clgraft.mxnet_ops.swap.order import Entry, Group, inputs_of, keep_order
from clgraft.mxnet_ops.swap.report import Report, Row

REGION = "ocl_region"
MOST_OUTPUTS = 60  # C marks outputs whose gradients are not read in 64 bits
LENT, OPEN = "lent", "open"  # keys of nodes until regions are formed
NO_REGION = "only regions have it, and none holds it"
INNER_TYPE = Inner.op_type


@dataclass(frozen=True)
class Loan:
    """What an operator of MXNet's own was that is a clgraft operator as long as it is in a region.

    Attributes
    ----------
    operator : str
    attributes : mapping or None
    row : int
        Its place in the report.
    reads_open : bool
        Whether an input has sizes that follow from operators after it.
    reason : str
        Why it stays MXNet's outside of regions.
    """

    operator: str
    attributes: Mapping[str, str] | None
    row: int
    reads_open: bool
    reason: str


def form_regions(
    graph: dict[str, Any],
    report: Report,
    states: Collection[str] = (),
    ordered: bool = True,
    precision: str | None = None,
    chains: bool = False,
) -> None:
    """Replace connected clgraft operators of a symbol's JSON graph, in place; it has no guards yet.

    A region is convex: no path leaves it and comes back. Values that are read outside of it, or that are outputs of
    the symbol, are its outputs. One operator alone stays as it is, with views around it too.

    Parameters
    ----------
    graph : dict
        Its nodes may have the keys `LENT`, a `Loan`, and `OPEN`, which says that sizes of its values follow from
        operators after it.
    report : Report
    states : collection of str
        Names of the auxiliary states.
    ordered : bool
        Whether the order of the symbol's arguments has to stay, and the names of its outputs; a region that would
        change the order is divided.
    precision : str, optional
        The type of the regions' products.
    chains : bool
        Limit regions to chains: a layer, the norm after it, and pointwise operators after them, where nothing else
        reads a value inside. Equal chains are one program: the names inside are none of the symbol's.
    """
    nodes = graph["nodes"]
    forming = _Forming(nodes, [entry[0] for entry in graph["heads"]], _shown(graph), ordered, chains)
    groups, divided = forming.groups(states if ordered else None)
    if forming.leave_open(groups):
        forming.refuse_open()
        groups, divided = forming.groups(states if ordered else None)
    give_back(graph, report, set(chain(*groups)))
    if divided:
        reason = f"{divided} divided: the order of list_arguments would change otherwise, which binds lists of arrays"
        report.rows.append(Row("", REGION, reason=reason))
    made: list[tuple[Group, dict[str, Any], list[Entry]]] = []
    casts: dict[Entry, int] = {}
    for group in groups:
        outputs = forming.outputs_of(group)
        inputs, auxiliary = inputs_of(group, nodes)
        taken = _taken_as_reals(group, inputs, nodes, casts)
        first = nodes[outputs[0][0]]
        name = first["name"]
        region = {
            "op": "Custom",
            "name": name,
            "attrs": {
                **_hidden(first),
                "graph": _text(group, nodes, inputs + auxiliary, outputs, named=not chains),
                "op_type": REGION,
                **({"precision": precision} if precision else {}),
            },
            "inputs": [[*entry, 0] for entry in taken + auxiliary],
        }
        made.append((group, region, outputs))
        report.regions[name] = [nodes[number]["name"] for number in group]
    _put(graph, made, ordered)


def give_back(graph: Mapping[str, Any], report: Report, taken: Collection[int] = ()) -> None:
    """Make what was lent to regions MXNet's own again, but for the nodes that regions have taken."""
    for number, node in enumerate(graph["nodes"]):
        node.pop(OPEN, None)
        loan = node.pop(LENT, None)
        if loan is None or number in taken:
            continue
        node["op"] = loan.operator
        node.pop("attrs")
        if loan.attributes is not None:
            node["attrs"] = dict(loan.attributes)
        report.rows[loan.row] = Row(node["name"], loan.operator, reason=loan.reason)


def _taken_as_reals(
    group: Group, inputs: Sequence[Entry], nodes: list[dict[str, Any]], casts: dict[Entry, int]
) -> list[Entry]:
    """Return the inputs of a region, those that are whole numbers in MXNet as casts.

    Casts are added to the nodes; `casts` has their places, for all regions.
    """
    whole = set()
    for number in group:
        operator = operator_of(nodes[number])
        entries = zip(operator.arguments, nodes[number]["inputs"])
        whole |= {(entry[0], entry[1]) for name, entry in entries if name in operator.whole_numbers}
    for source, output in sorted(whole.intersection(inputs) - casts.keys()):
        casts[source, output] = len(nodes)
        name = f"{nodes[source]['name']}_output{output or ''}_as_float32"
        nodes.append({"op": "Cast", "name": name, "attrs": {"dtype": "float32"}, "inputs": [[source, output, 0]]})
    return [(casts[entry], 0) if entry in whole else entry for entry in inputs]


def _shown(graph: Mapping[str, Any]) -> set[Entry]:
    return {(entry[0], entry[1]) for entry in graph["heads"]}


def _hidden(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a node's scope, such as the layout of its output."""
    return {key: value for key, value in node.get("attrs", {}).items() if key.startswith("__")}


def _is_clgraft_node(node: Mapping[str, Any]) -> bool:
    op_type = node.get("attrs", {}).get("op_type")
    return node["op"] == "Custom" and op_type in FAMILIES and op_type != REGION


class _Forming:
    """Finds the groups of operators that become regions.

    Parameters
    ----------
    nodes : sequence of mappings
        Of a symbol's JSON graph.
    heads : sequence of int
        The nodes of its outputs.
    shown : set of Entry
        Its outputs.
    ordered, chains : bool
        As of `form_regions`.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        heads: Sequence[int],
        shown: set[Entry],
        ordered: bool,
        chains: bool,
    ) -> None:
        self.nodes, self.heads, self.shown, self.ordered, self.chains = nodes, heads, shown, ordered, chains
        self.readers: dict[int, set[int]] = defaultdict(set)
        self.entries: dict[Entry, set[int]] = defaultdict(set)
        for number, node in enumerate(nodes):
            for entry in node["inputs"]:
                self.readers[entry[0]].add(number)
                self.entries[entry[0], entry[1]].add(number)
        self.loans: dict[int, Loan] = {number: node[LENT] for number, node in enumerate(nodes) if LENT in node}
        self.open = {number for number, node in enumerate(nodes) if OPEN in node}
        self.joinable = self._joinable()
        self.operators = {number: operator_of(nodes[number]) for number in self.joinable}
        self.views = {number for number, operator in self.operators.items() if operator.is_view}
        self.own = {number for number in self.joinable if nodes[number]["attrs"]["op_type"] != INNER_TYPE}

    def _joinable(self) -> set[int]:
        """Return the nodes that can be in a region: clgraft operators, unless the symbol's outputs keep their names.

        MXNet names outputs after their node. An operator of several outputs, one of which is the symbol's, stays a
        node then.
        """
        ours = {number for number, node in enumerate(self.nodes) if _is_clgraft_node(node)}
        if not self.ordered:
            return ours
        several = {number for number in ours & set(self.heads) if len(operator_of(self.nodes[number]).outputs) > 1}
        return ours - several

    def groups(self, states: Collection[str] | None) -> tuple[list[Group], int]:
        """Return the groups, and how many were divided for the order of arguments: with `states` it stays."""
        whole = self._chains() if self.chains else _convex(self.nodes, self.joinable)
        found = [part for group in whole for part in self.worth(group)]
        if states is None:
            return found, 0
        kept = keep_order(self.nodes, self.heads, found, states, self.worth)
        stay = {tuple(group) for group in kept}
        return kept, sum(tuple(group) not in stay for group in found)

    def _chains(self) -> list[Group]:
        """Return the operators of chains in groups: each joins the group that all of its readers are in."""
        groups: dict[int, Group] = {}
        for number in sorted(self.joinable - set(self.heads), reverse=True):
            place, readers = self.operators[number].chain_place, sorted(self.readers[number])
            after = [self.operators[reader].chain_place if reader in self.joinable else 0 for reader in readers]
            around = [groups.get(reader) or groups.setdefault(reader, [reader]) for reader in readers]
            follows = all(0 < place < one or place == one == POINTWISE for one in after)
            if readers and follows and all(group is around[0] for group in around):
                around[0].insert(0, number)
                groups[number] = around[0]
        return [group for last, group in sorted(groups.items()) if last == group[-1]]

    def worth(self, group: Group) -> list[Group]:
        """Return a group without the views that are better outside of it; nothing if no region is worth while."""
        members = set(group)
        while True:
            idle = {number for number in members & self.views if self._is_idle(number, members)}
            if not idle:
                break
            members -= idle
        left = sorted(members)
        if len(members - self.views) < 2 or not members & self.own:
            return []
        inputs, auxiliary = inputs_of(left, self.nodes)
        good = 0 < len(self.outputs_of(left)) <= MOST_OUTPUTS and not set(inputs) & set(auxiliary)
        return [left] if good else []

    def _is_idle(self, number: int, members: Collection[int]) -> bool:
        """Return whether a view is the last in a group, or the first of it and read outside as well."""
        inside = [reader in members for reader in self.readers[number]]
        first = not any(entry[0] in members for entry in self.nodes[number]["inputs"])
        return not any(inside) or (first and (number in self.heads or not all(inside)))

    def outputs_of(self, group: Sequence[int]) -> list[Entry]:
        """Return the values of a group that are read outside of it."""
        members = set(group)
        every = [(n, output) for n in group for output in range(len(operator_of(self.nodes[n]).outputs))]
        return [entry for entry in every if entry in self.shown or not self.entries[entry] <= members]

    def leave_open(self, groups: Sequence[Group]) -> bool:
        """Return whether the sizes of a value that follow from operators after it are not told inside of its group."""
        group_of = {number: index for index, group in enumerate(groups) for number in group}
        used = self.joinable & {n for n in (*self.open, *self.loans) if n in self.open or self.loans[n].reads_open}
        for number in used:
            index, operator = group_of.get(number), operator_of(self.nodes[number])
            around = [entry[0] for entry in self.nodes[number]["inputs"] if entry[0] in self.open]
            if number in self.open:
                around += self.readers[number]
            tells = number in self.open or all(
                name in operator.inferred
                for name, entry in zip(operator.arguments, self.nodes[number]["inputs"])
                if entry[0] in self.open
            )
            if index is None or not tells or operator.open_sizes > 1:
                return True
            if any(group_of.get(other) != index for other in around):
                return True
        return False

    def refuse_open(self) -> None:
        """Leave the operators whose sizes follow from others after them to MXNet."""
        refused = {number for number, loan in self.loans.items() if number in self.open or loan.reads_open}
        self.joinable -= refused
        self.views -= refused
        self.own -= refused


def _convex(nodes: Sequence[Mapping[str, Any]], joinable: Collection[int]) -> list[Group]:
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


def _text(
    group: Sequence[int],
    nodes: Sequence[Mapping[str, Any]],
    inputs: Sequence[Entry],
    outputs: Sequence[Entry],
    named: bool,
) -> str:
    """Return the group as a symbol's JSON, `named` as in the symbol or by places."""
    place: dict[Entry, Entry] = {}
    inner: list[dict[str, Any]] = []
    for source, output in inputs:
        node = nodes[source]
        place[source, output] = len(inner), 0
        name = node["name"] if node["op"] == "null" else f"{node['name']}_output{output or ''}"
        inner.append({"op": "null", "name": name if named else f"x{len(inner)}", "inputs": []})
    for number in group:
        node = nodes[number]
        for output in range(len(operator_of(node).outputs)):
            place[number, output] = len(inner), output
        entries = [[*place[entry[0], entry[1]], 0] for entry in node["inputs"]]
        attributes = {key: value for key, value in node["attrs"].items() if not key.startswith("__")}
        name = node["name"] if named else f"x{len(inner)}"
        inner.append({"op": "Custom", "name": name, "attrs": attributes, "inputs": entries})
    heads = [[*place[entry], 0] for entry in outputs]
    found = {"nodes": inner, "arg_nodes": list(range(len(inputs))), "heads": heads}
    return json.dumps(found, separators=(",", ":"))


def _put(graph: dict[str, Any], made: Sequence[tuple[Group, dict[str, Any], list[Entry]]], named: bool) -> None:
    """Put regions in the places of their operators, in an order in which every node follows its inputs.

    With `named` the symbol's outputs keep their names.
    """
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

    def shown(entry: Sequence[int]) -> list[int]:
        """Return a head; a copy gives it the name of its operator if the region does not, but should."""
        found = moved(entry)
        if not named or entry[0] not in region_of or not found[1]:
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
    heads = [shown(entry) for entry in graph["heads"]]  # which adds nodes
    replace_nodes(graph, nodes, heads)
