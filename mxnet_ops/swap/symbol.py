"""Swap of a Symbol: the same graph with clgraft operators in the places of MXNet's own."""

from __future__ import annotations

import ast
import copy
import json
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import mxnet as mx

from clgraft.core import ProblemError
from clgraft.mxnet_ops.engine.operator import find_operator
from clgraft.mxnet_ops.guards.guard import MARK, guard_graph
from clgraft.mxnet_ops.guards.unguard import unguard_graph
from clgraft.mxnet_ops.guards.unsized import shares_shape, unsized_nodes
from clgraft.mxnet_ops.swap.dtypes import Dtypes
from clgraft.mxnet_ops.swap.frozen import expect_regions, expect_variables, find_parameters, freeze_regions
from clgraft.mxnet_ops.swap.regions import REGION, form_regions
from clgraft.mxnet_ops.swap.report import Report, Row
from clgraft.mxnet_ops.swap.shapes import passing_back
from clgraft.mxnet_ops.swap.table import Kept, Node, Select, is_selected, translate


def swap_symbol(
    symbol: mx.sym.Symbol,
    *,
    select: Select = None,
    fuse: bool | None = None,
    regions: bool | None = None,
    frozen: bool | Collection[str] = False,
) -> tuple[mx.sym.Symbol, Report]:
    """Return a symbol in which convolutions, batch norms, activations and elementwise operators are clgraft's.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        Not changed.
    select : callable or patterns, optional
        A function of a `Node` (name, operator, attributes), or patterns such as ``"stage1_*"`` or ``"BatchNorm"`` that
        match names or operators. Everything by default.
    fuse : bool, optional
        Deprecated: True means `regions`, in which chains become one kernel.
    regions : bool, optional
        Make one operator, ``ocl_region``, of connected clgraft operators: the values between them stay on the device,
        and nobody sees them. Outputs of the symbol stay visible. False by default.
    frozen : bool or collection of str
        With regions: inference reads the region's parameters once and takes them as constants (see `refresh`). True
        means the variables that are weights, biases, gammas or betas of an operator; other parameters are given by
        name. Auxiliary states are always among them. The symbol keeps it, also in files.

    Returns
    -------
    symbol : mx.sym.Symbol
        With the same arguments, auxiliary states and outputs, in the same order and with the same names: parameters of
        the one load into the other.
    report : Report
        What was replaced, what was left alone and why.

    Raises
    ------
    ProblemError
        If it is no symbol.
    """
    if not isinstance(symbol, mx.sym.Symbol):
        other = " (swap_block takes Gluon nets)" if isinstance(symbol, mx.gluon.Block) else ""
        raise ProblemError(f"[swap] got {type(symbol).__name__}, expected an mx.sym.Symbol{other}")
    return swap_known(symbol, {}, select=select, regions=with_fuse(fuse, regions, default=False), frozen=frozen)


def with_fuse(fuse: bool | None, regions: bool | None, default: bool) -> bool:
    """Return whether there are regions, and warn of the argument that means them too for one more release.

    Raises
    ------
    ProblemError
        If `fuse` asks for regions and `regions` for none.
    """
    chosen = default if regions is None else regions
    if fuse is None:
        return chosen
    if fuse and regions is not None and not regions:
        raise ProblemError("[swap] got fuse=True and regions=False, expected regions alone: fuse means the same")
    warnings.warn("fuse is deprecated and means regions: use regions instead", DeprecationWarning, stacklevel=3)
    return chosen or fuse


def swap_known(
    symbol: mx.sym.Symbol,
    given: Mapping[str, Any],
    sized: Collection[str] = (),
    *,
    select: Select,
    regions: bool,
    frozen: bool | Collection[str],
) -> tuple[mx.sym.Symbol, Report]:
    """Do what `swap_symbol` does.

    `given` has the dtypes of variables whose arrays are there, by name; `sized` the variables whose shape every call
    gives.
    """
    expect_regions(frozen, regions)
    graph = json.loads(symbol.tojson())
    nodes, report = graph["nodes"], Report()
    dtypes = Dtypes(symbol, copy.deepcopy(nodes), given)
    used = _used_outputs(graph)
    unsized, back = unsized_nodes(nodes), passing_back(nodes, sized)
    for number, node in enumerate(nodes):
        attributes = node.get("attrs", {})
        if node["op"] == "null" or MARK in attributes or (node["op"] == "Custom" and "op_type" in attributes):
            continue
        seen = Node(node["name"], node["op"], attributes)
        try:
            if not is_selected(select, seen):
                raise Kept("not selected")
            sources = [nodes[entry[0]] for entry in node["inputs"]]
            dtypes.expect_reals(number)
            if number in back:
                raise Kept("the shapes of variables before it follow from operators after it")
            _expect_sizes(node, number, unsized)
            op_type, translated = translate(seen, _weight_shape(node["op"], sources))
            _expect_inputs(op_type, translated, len(sources))
            _expect_outputs(op_type, translated, used.get(number, 0))
            dtypes.expect_nothing_else(number)
        except Kept as reason:
            report.rows.append(Row(seen.name, seen.operator, reason=str(reason)))
            continue
        hidden = {key: value for key, value in attributes.items() if key.startswith("__")}
        node["op"], node["attrs"] = "Custom", {**translated, **hidden, "op_type": op_type}
        report.rows.append(Row(seen.name, seen.operator, op_type))
    if isinstance(frozen, bool):
        parameters: Collection[str] = find_parameters(nodes) if frozen else ()
    else:
        expect_variables(frozen, symbol.list_inputs())
        parameters = frozen
    if regions:
        unguard_graph(graph)
        graph = _with_regions(graph, report)
    if frozen is not False:
        freeze_regions(graph, parameters, report)
    text = json.dumps(graph)
    report.guards = guard_graph(graph)
    return mx.sym.load_json(text), report


def _with_regions(graph: dict[str, Any], report: Report) -> dict[str, Any]:
    """Return the graph with regions, or itself if they would change the order of the symbol's arguments."""
    joined = copy.deepcopy(graph)
    form_regions(joined, report)
    before, after = (mx.sym.load_json(json.dumps(found)) for found in (graph, joined))
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        if getattr(before, names)() != getattr(after, names)():
            report.regions.clear()
            reason = f"regions would change {names}: {getattr(before, names)()} would be {getattr(after, names)()}"
            report.rows.append(Row("", REGION, reason=reason))
            return graph
    return joined


def _expect_sizes(node: dict[str, Any], number: int, unsized: set[int]) -> None:
    reads_unsized = any(entry[0] in unsized for entry in node["inputs"])
    if reads_unsized and (number in unsized or not shares_shape(node)):
        raise Kept("the sizes of its inputs follow from operators after it")


def _expect_inputs(op_type: str, attributes: dict[str, str], count: int) -> None:
    operator = find_operator(op_type, attributes)
    names = operator.arguments + operator.auxiliary
    if len(names) != count:
        raise Kept(f"it has {count} inputs, expected {names}")


def _used_outputs(graph: dict[str, Any]) -> dict[int, int]:
    """Return the number of the last output of each node that something reads."""
    used: dict[int, int] = {}
    for entries in (graph["heads"], *(node["inputs"] for node in graph["nodes"])):
        for number, output, *_ in entries:
            used[number] = max(used.get(number, 0), output)
    return used


def _expect_outputs(op_type: str, attributes: dict[str, str], last: int) -> None:
    names = find_operator(op_type, attributes).outputs
    if last >= len(names):
        raise Kept(f"its output {last} is used, the grafted operator has {names}")


def _weight_shape(operator: str, sources: list[dict[str, Any]]) -> tuple[int, ...] | None:
    if operator != "Convolution" or len(sources) < 2:
        return None
    text = sources[1].get("attrs", {}).get("__shape__")
    shape = tuple(ast.literal_eval(text)) if text else ()
    return shape if len(shape) > 2 and min(shape[1], shape[-1]) > 0 else None
