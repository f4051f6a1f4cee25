"""Tells regions which of their inputs are frozen parameters."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clgraft.core import ProblemError
from clgraft.core.errors import hint
from clgraft.core.planning.precision import mixed_precision
from clgraft.mxnet_ops.engine.operator import FAMILIES, operator_of
from clgraft.mxnet_ops.swap.regions import REGION
from clgraft.mxnet_ops.swap.report import Report


def find_parameters(nodes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the variables of a symbol's JSON graph that operators of this package read as parameters."""
    found = set()
    for node in nodes:
        if node["op"] == "Custom" and node["attrs"].get("op_type") in FAMILIES:
            operator = operator_of(node)
            sources = [nodes[entry[0]] for entry in node["inputs"]]
            given = zip(operator.arguments, sources)
            found |= {s["name"] for name, s in given if name in operator.parameters and s["op"] == "null"}
    return found


def freeze_regions(graph: Mapping[str, Any], parameters: Collection[str], report: Report) -> None:
    """Write into each region of a symbol's JSON graph which of its inputs are frozen.

    Parameters
    ----------
    graph : dict
        Changed in place.
    parameters : collection of str
        Names of variables; auxiliary states are frozen anyway.
    report : Report
    """
    nodes = graph["nodes"]
    for node in nodes:
        if node["op"] != "Custom" or node["attrs"].get("op_type") != REGION:
            continue
        region = operator_of(node)
        sources = [nodes[entry[0]] for entry in node["inputs"]]
        frozen = [n for n, s in zip(region.arguments, sources) if s["op"] == "null" and s["name"] in parameters]
        frozen += region.auxiliary
        if frozen:
            node["attrs"]["frozen"] = json.dumps(frozen, separators=(",", ":"))
            report.frozen[node["name"]] = frozen


def expect_regions(frozen: bool | Collection[str], regions: bool) -> None:
    """Raise `ProblemError` if parameters are frozen without regions."""
    if frozen and not regions:
        raise ProblemError("[swap] got frozen without regions, expected both: regions have frozen parameters")


def expect_precision(precision: str | None, regions: bool) -> None:
    """Raise an error if a precision is unknown, or given without regions."""
    mixed_precision(precision)
    if precision and not regions:
        raise ProblemError(f"[swap] got precision {precision!r} without regions, expected both: regions have one")


def expect_variables(names: Collection[str], known: Collection[str]) -> None:
    """Raise `ProblemError` unless all names are known."""
    for name in names:
        if name not in known:
            raise ProblemError(f"[swap] got frozen {name!r}, expected some of {list(known)}{hint(str(name), known)}")
