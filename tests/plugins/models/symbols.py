"""Symbols as MXNet writes them, made without MXNet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clgraft.core.model import NetSession
from clgraft.plugins.models.bare import bare

with bare("clgraft.mxnet_ops"):
    from clgraft.mxnet_ops.symbols.lowering import SymbolNet
    from clgraft.mxnet_ops.symbols.params import read_named
    from clgraft.mxnet_ops.symbols.symbol import read_symbol

Line = tuple  # operator, name, attributes, names of inputs with ":1" for the second output


def symbol(lines: Sequence[Line], heads: Sequence[str] = (), key: str = "attrs", version: bool = True) -> bytes:
    """Return the JSON of a symbol: variables are what no line computes, and the last line is the output by default.

    Parameters
    ----------
    lines : sequence of Line
    heads : sequence of str
    key : str
        What attributes are called: they have been called otherwise.
    version : bool
        Whether inputs have a third number.
    """
    nodes: list[dict[str, Any]] = []
    places: dict[str, int] = {}

    def entry(word: str) -> list[int]:
        name, _, output = word.partition(":")
        if name not in places:
            places[name] = len(nodes)
            nodes.append({"op": "null", "name": name, "inputs": []})
        return [places[name], int(output or 0), *([0] if version else [])]

    for operator, name, attributes, inputs in lines:
        entries = [entry(word) for word in inputs]
        places[name] = len(nodes)
        nodes.append({"op": operator, "name": name, "inputs": entries})
        if attributes:
            nodes[-1][key] = {each: str(value) for each, value in attributes.items()}
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    ends = [entry(word) for word in heads or (lines[-1][1],)]
    return json.dumps({"nodes": nodes, "arg_nodes": variables, "heads": ends}).encode()


def session(data: bytes, parameters: Mapping[str, np.ndarray] | None = None, **more: Any) -> NetSession:
    """Return a session for a symbol in bytes."""
    return NetSession(SymbolNet(read_symbol(data), parameters or {}, **more))


def load_small(folder: Path) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the small net that MXNet has written."""
    return (folder / "small-symbol.json").read_bytes(), read_named(folder / "small-0000.params")
