"""Chains of operators that work element by element become one `ocl_pointwise`: memory is read and written once.

A batch norm takes in the activation after it.

Values in between are computed again for the gradient instead of kept. An operator joins the one that reads it if
nothing else does, so no value that anybody sees is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clgraft.core.nn import activations, elementwise
from clgraft.core.operators.pointwise.chain import Formula, Outer, Source, join
from clgraft.mxnet_ops.engine.operator import operator_of
from clgraft.mxnet_ops.guards.unsized import unsized_nodes
from clgraft.mxnet_ops.operators.activation import FUNCTIONS, Activation
from clgraft.mxnet_ops.operators.batchnorm import FOLLOWING, BatchNorm
from clgraft.mxnet_ops.operators.eltwise import Eltwise
from clgraft.mxnet_ops.swap.report import Report

MOST_INPUTS = 8
MOST_OPERATORS = 24

Entry = tuple[int, int]  # a node and its output


def formula_of(node: Mapping[str, Any]) -> Formula | None:
    """Return what a node of a graph computes, if it is a grafted operator that works element by element."""
    if node["op"] != "Custom" or node["attrs"].get("op_type") not in (Activation.op_type, Eltwise.op_type):
        return None
    operator = operator_of(node)
    if isinstance(operator, Activation):
        if operator.act_type not in FUNCTIONS:
            return None  # it has learned or random slopes
        return activations.formula(FUNCTIONS[operator.act_type][0], operator.scalars)
    if not isinstance(operator, Eltwise) or operator.broadcast or operator.coefficients:
        return None
    return elementwise.formula(operator.operation, operator.num_args)


def fuse(graph: dict[str, Any], report: Report) -> None:
    """Replace chains in a swapped graph, in place, and say so in the report; to be done before guards are added."""
    nodes = graph["nodes"]
    readers: dict[int, list[Entry]] = defaultdict(list)
    for number, node in enumerate(nodes):
        for entry in node["inputs"]:
            readers[entry[0]].append((number, entry[1]))
    seen = {entry[0] for entry in graph["heads"]}
    gone: set[int] = set()
    for number, node in enumerate(nodes):
        if number not in seen and [output for _, output in readers[number]] == [0]:
            reader = nodes[readers[number][0][0]]
            joined = _activated(node, reader)
            if joined is not None:
                reader.update(joined)
                gone.add(number)
                _tell(report, {reader["name"]}, BatchNorm.op_type)
    _drop(graph, gone)
    _fuse_chains(graph, report)


def _activated(norm: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a batch norm with its activation, if the nodes are these."""
    attributes, own = norm.get("attrs", {}), node.get("attrs", {})
    if attributes.get("op_type") != BatchNorm.op_type or own.get("op_type") != Activation.op_type:
        return None
    if attributes.get("act_type", "none") != "none" or own.get("act_type") not in FOLLOWING:
        return None
    kept = {key: value for key, value in attributes.items() if not key.startswith("__")}
    return {"attrs": {**kept, **own, "op_type": BatchNorm.op_type}, "inputs": norm["inputs"]}


def _fuse_chains(graph: dict[str, Any], report: Report) -> None:
    nodes = graph["nodes"]
    formulas = [formula_of(node) for node in nodes]
    unsized = unsized_nodes(nodes)
    for number, node in enumerate(nodes):
        # shapes of variables and of arrays of unknown sizes may follow from the other input, unknown to an expression
        sources = [entry[0] for entry in node["inputs"]]
        if len(sources) > 1 and any(nodes[source]["op"] == "null" or source in unsized for source in sources):
            formulas[number] = None
    readers: dict[int, set[int]] = defaultdict(set)
    for number, node in enumerate(nodes):
        for entry in node["inputs"]:
            readers[entry[0]].add(number)
    seen = {entry[0] for entry in graph["heads"]}
    gone: set[int] = set()
    for last in reversed(range(len(nodes))):
        if formulas[last] is None or last in gone:
            continue
        group = _grow(last, nodes, formulas, readers, seen)
        if len(group) > 1:
            nodes[last] = _fused(group, nodes, [formulas[i] for i in group])
            gone.update(group[:-1])
            _tell(report, {nodes[i]["name"] for i in group}, "ocl_pointwise")
    _drop(graph, gone)


def _grow(
    last: int,
    nodes: Sequence[Mapping[str, Any]],
    formulas: Sequence[Formula | None],
    readers: Mapping[int, set[int]],
    seen: set[int],
) -> list[int]:
    """Return the operators that become one with the last of them, in order."""
    group = {last}
    grown = True
    while grown:
        grown = False
        for source in sorted({e[0] for i in group for e in nodes[i]["inputs"]} - group, reverse=True):
            if formulas[source] is None or source in seen or not readers[source] <= group:
                continue
            wider = group | {source}
            outside = {(e[0], e[1]) for i in wider for e in nodes[i]["inputs"] if e[0] not in wider}
            if len(wider) <= MOST_OPERATORS and len(outside) <= MOST_INPUTS:
                group, grown = wider, True
    return sorted(group)


def _fused(group: Sequence[int], nodes: Sequence[Mapping[str, Any]], formulas: Sequence[Any]) -> dict[str, Any]:
    """Return operators of a graph as one, with the name and the scope of the last."""
    inputs = _inputs(group[-1], set(group), nodes)
    sources: list[list[Source]] = [
        [group.index(node) if node in group else Outer(inputs.index((node, output))) for node, output, *_ in entries]
        for entries in (nodes[number]["inputs"] for number in group)
    ]
    chain, last = join(formulas, sources, len(inputs)), nodes[group[-1]]
    hidden = {key: value for key, value in last["attrs"].items() if key.startswith("__")}
    attributes = {
        "expression": chain.expression,
        "gradient": chain.gradient,
        "num_args": str(len(inputs)),
        "scalars": repr(chain.scalars),
    }
    return {
        "op": "Custom",
        "name": last["name"],
        "attrs": {**attributes, **hidden, "op_type": "ocl_pointwise"},
        "inputs": [[node, output, 0] for node, output in inputs],
    }


def _inputs(last: int, group: set[int], nodes: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Return what a group reads from outside, in the order in which MXNet meets it: that of a symbol's arguments."""
    found: list[Entry] = []
    for node, output, *_ in nodes[last]["inputs"]:
        entries = _inputs(node, group, nodes) if node in group else [(node, output)]
        found += [entry for entry in entries if entry not in found]
    return found


def _tell(report: Report, names: set[str], graft: str) -> None:
    report.rows = [replace(row, graft=graft) if row.graft and row.name in names else row for row in report.rows]


def _drop(graph: dict[str, Any], gone: set[int]) -> None:
    """Take nodes out of a graph, to which no other node leads any more."""
    place: dict[int, int] = {}
    nodes: list[dict[str, Any]] = []
    for number, node in enumerate(graph["nodes"]):
        if number not in gone:
            place[number] = len(nodes)
            nodes.append({**node, "inputs": [[place[e[0]], *e[1:]] for e in node["inputs"]]})
    graph["nodes"] = nodes
    graph["heads"] = [[place[e[0]], *e[1:]] for e in graph["heads"]]
    graph["arg_nodes"] = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    graph.pop("node_row_ptr", None)
