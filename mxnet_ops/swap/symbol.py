"""Swap of a Symbol: the same graph with clgraft operators in the places of MXNet's own."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Collection, Mapping
from typing import Any

import mxnet as mx

from clgraft.core import ProblemError
from clgraft.core.planning.precision import FLOAT32
from clgraft.mxnet_ops.engine.operator import FAMILIES, Operator, find_operator
from clgraft.mxnet_ops.guards.guard import MARK, guard_graph
from clgraft.mxnet_ops.guards.unguard import unguard_graph
from clgraft.mxnet_ops.guards.unsized import shares_shape, unsized_nodes
from clgraft.mxnet_ops.operators.inner import INNER, Inner
from clgraft.mxnet_ops.swap.amp import type_of_casts, without_casts
from clgraft.mxnet_ops.swap.dtypes import Dtypes
from clgraft.mxnet_ops.swap.frozen import (
    expect_precision,
    expect_regions,
    expect_variables,
    find_parameters,
    freeze_regions,
)
from clgraft.mxnet_ops.swap.regions import LENT, NO_REGION, OPEN, REGION, Loan, form_regions, give_back
from clgraft.mxnet_ops.swap.report import Report, Row
from clgraft.mxnet_ops.swap.selection import Chosen, Select, as_choice, refusal, tell
from clgraft.mxnet_ops.swap.shapes import passing_back
from clgraft.mxnet_ops.swap.table import Kept, ModelOperator, is_translatable, plain_name, translate, translate_inner

OPEN_SIZES = "the sizes of its inputs follow from operators after it"


def swap_symbol(
    symbol: mx.sym.Symbol,
    *,
    select: Select = None,
    fuse: bool = False,
    regions: bool = False,
    frozen: bool | Collection[str] = False,
    precision: str | None = None,
) -> tuple[mx.sym.Symbol, Report]:
    """Return a symbol in which convolutions, batch norms, activations and elementwise operators are clgraft's.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        Not changed.
    select : callable or patterns, optional
        A function of a `ModelOperator` (name, operator, attributes), or patterns such as ``"stage1_*"`` or
        ``"BatchNorm"`` that match names or operators. Everything by default.
    fuse : bool
        Without regions: make one operator, a short ``ocl_region``, of each chain: a convolution or dense layer, the
        norm after it, and the operators after that which work element by element. Nobody sees the values inside.
    regions : bool
        Make one operator, ``ocl_region``, of connected clgraft operators: the values between them stay on the device,
        and nobody sees them. Outputs of the symbol stay visible.
    frozen : bool or collection of str
        With regions: inference reads the region's parameters once and takes them as constants (see `refresh`). True
        means the variables that are weights, biases, gammas or betas of an operator; other parameters are given by
        name. Auxiliary states are always among them. The symbol keeps it, also in files.
    precision : str, optional
        With regions: ``float16`` or ``bfloat16`` as the type of their products, with what rounding would spoil in
        float32 (see ``docs/graphs.md``). Arrays stay float32: parameters, gradients, inputs and outputs. ``float32``
        holds whatever ``CLGRAFT_PRECISION`` says. The symbol keeps it, also in files.

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
    SelectionError
        If `select` chooses no operator; names the nearest names and operators that there are.
    """
    if not isinstance(symbol, mx.sym.Symbol):
        other = " (swap_block takes Gluon nets)" if isinstance(symbol, mx.gluon.Block) else ""
        raise ProblemError(f"[swap] got {type(symbol).__name__}, expected an mx.sym.Symbol{other}")
    choice = as_choice(select)
    swapped, report = swap_known(
        symbol,
        {},
        select=choice,
        fuse=fuse,
        regions=regions,
        frozen=frozen,
        precision=precision,
    )
    tell(choice, report)
    return swapped, report


def swap_known(
    symbol: mx.sym.Symbol,
    given: Mapping[str, Any],
    sized: Collection[str] = (),
    *,
    select: Chosen,
    fuse: bool,
    regions: bool,
    frozen: bool | Collection[str],
    precision: str | None,
    ordered: bool = True,
) -> tuple[mx.sym.Symbol, Report]:
    """Do what `swap_symbol` does.

    `given` has the dtypes of variables whose arrays are there, by name; `sized` the variables whose shape every call
    gives. The order of arguments and the names of outputs may change unless `ordered`. Where ``mx.contrib.amp`` has put
    casts into the symbol, regions have their precision.
    """
    expect_regions(frozen, regions)
    expect_precision(precision, regions)
    cast = type_of_casts(symbol)
    if cast is not None:
        precision = precision or (cast if regions else None)
        symbol = without_casts(symbol)
    graph = json.loads(symbol.tojson())
    nodes, report = graph["nodes"], Report()
    dtypes = Dtypes(symbol, copy.deepcopy(nodes), given)
    used, shown = _used_outputs(graph), {entry[0] for entry in graph["heads"]}
    unsized, back = unsized_nodes(nodes), passing_back(nodes, sized)
    for number, node in enumerate(nodes):
        attributes = node.get("attrs", {})
        if node["op"] == "Custom" and attributes.get("op_type") in FAMILIES:
            report.before += 1
        if node["op"] == "null" or MARK in attributes or (node["op"] == "Custom" and "op_type" in attributes):
            continue
        seen = ModelOperator(node["name"], node["op"], attributes)
        kept = ""
        try:
            refused = refusal(select, seen)
            if refused:
                raise Kept(refused)
            sources = [nodes[entry[0]] for entry in node["inputs"]]
            dtypes.expect_reals(number)
            if number in back:
                raise Kept("the shapes of variables before it follow from operators after it")
            reads_open = _reads_open(node, number, unsized)
            if reads_open and not regions:
                raise Kept(OPEN_SIZES)
            try:
                op_type, translated = translate(seen, _weight_shape(node["op"], sources))
                kept = OPEN_SIZES if reads_open else ""
            except Kept as reason:
                if not regions or (ordered and number in shown) or plain_name(seen.operator) not in INNER:
                    raise
                kept = NO_REGION if "no grafted operator" in str(reason) else str(reason)
                op_type, translated = _inside(seen, reason)
                _expect_inside(find_operator(op_type, translated), node, unsized if number not in unsized else ())
                dtypes.expect_one_dtype(number)
            _expect_inputs(op_type, translated, len(sources))
            _expect_outputs(op_type, translated, used.get(number, 0))
            dtypes.expect_nothing_else(number)
        except Kept as reason:
            report.rows.append(Row(seen.name, seen.operator, reason=str(reason)))
            continue
        if kept:
            node[LENT] = Loan(seen.operator, node.get("attrs"), len(report.rows), reads_open, kept)
        hidden = {key: value for key, value in attributes.items() if key.startswith("__")}
        node["op"], node["attrs"] = "Custom", {**translated, **hidden, "op_type": op_type}
        report.rows.append(Row(seen.name, seen.operator, op_type))
    if isinstance(frozen, bool):
        parameters: Collection[str] = find_parameters(nodes) if frozen else ()
    else:
        expect_variables(frozen, symbol.list_inputs())
        parameters = frozen
    if regions:
        for number in unsized:
            nodes[number][OPEN] = True
    if regions or fuse:
        unguard_graph(graph)
        states = symbol.list_auxiliary_states()
        graph = _with_regions(graph, report, states, ordered=ordered, precision=precision, chains=not regions)
    if frozen is not False:
        freeze_regions(graph, parameters, report)
    text = json.dumps(graph)
    report.guards = guard_graph(graph)
    return mx.sym.load_json(text), report


def _with_regions(
    graph: dict[str, Any],
    report: Report,
    states: Collection[str],
    *,
    ordered: bool,
    precision: str | None,
    chains: bool,
) -> dict[str, Any]:
    """Return the graph with regions, or without any if they would change what a symbol shows."""
    joined, whole = copy.deepcopy(graph), copy.deepcopy(report)
    form_regions(joined, whole, states, ordered, FLOAT32 if chains else precision, chains)
    give_back(graph, report)
    before, after = (mx.sym.load_json(json.dumps(found)) for found in (graph, joined))
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        if names == "list_outputs" and not ordered:
            continue
        lists = [getattr(found, names)() for found in (before, after)]
        if lists[0] != lists[1] if ordered else sorted(lists[0]) != sorted(lists[1]):
            report.rows.append(Row("", REGION, reason=f"regions would change {names}"))
            return graph
    report.rows, report.regions = whole.rows, whole.regions
    report.precision = precision or ""
    return joined


def _inside(seen: ModelOperator, refused: Kept) -> tuple[str, dict[str, str]]:
    """Return what computes an operator in regions; if nothing does, raise why no clgraft operator of its own does."""
    try:
        return translate_inner(seen)
    except Kept:
        if is_translatable(seen.operator):
            raise refused from None
        raise


def _reads_open(node: dict[str, Any], number: int, unsized: set[int]) -> bool:
    """Return whether an operator has to be told the sizes of an input by operators after it."""
    reads_unsized = any(entry[0] in unsized for entry in node["inputs"])
    return reads_unsized and (number in unsized or not shares_shape(node))


def _expect_inside(operator: Operator, node: dict[str, Any], unsized: Collection[int]) -> None:
    """Raise `Kept` if regions leave an operator to MXNet, or if inputs lack sizes that it does not tell."""
    if isinstance(operator, Inner) and operator.outside:
        raise Kept(operator.outside)
    for name, entry in zip(operator.arguments, node["inputs"]):
        if entry[0] in unsized and name not in operator.inferred:
            raise Kept(OPEN_SIZES)


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
