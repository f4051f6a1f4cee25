"""Graphs of one operator: MXNet is asked what it infers of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from clgraft.mxnet_ops.engine.graphs import with_nodes

Key = tuple[tuple[str, str], ...]


def key_of(attributes: Mapping[str, str]) -> Key:
    """Return an operator's attributes, without those that only programs see, as a key of caches."""
    return tuple(sorted((name, text) for name, text in attributes.items() if not name.startswith("__")))


def graph_of(operator: str, attributes: Key, inputs: int, *more: Mapping[str, Any]) -> mx.sym.Symbol:
    """Return the symbol of an operator of variables x0, x1, ...; nodes follow it, of which the last one is the output.

    Raises
    ------
    MXNetError
        If MXNet refuses the operator.
    """
    nodes: list[Mapping[str, Any]] = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    entries = [[i, 0, 0] for i in range(inputs)]
    nodes += [{"op": operator, "name": "made", "attrs": dict(attributes), "inputs": entries}, *more]
    version = json.loads(mx.sym.var("x").tojson())["attrs"]  # otherwise MXNet converts an old format, and says so
    return mx.sym.load_json(json.dumps(with_nodes({"attrs": version}, nodes, [[len(nodes) - 1, 0, 0]])))
