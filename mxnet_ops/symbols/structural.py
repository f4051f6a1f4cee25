"""Parameters that Gluon's `save_parameters` has named by blocks, for a symbol that has names of its own.

The file names a parameter by its place in the net, ``features.0.weight``; the symbol calls it ``net0_conv0_weight``.
The file is in the order in which blocks were made. Gluon counts layers of a kind in that order too, within a name
scope; the scopes themselves follow each other in the symbol in the order in which they compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.model import ModelError
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.symbols.symbol import SymbolGraph

DIGITS = re.compile(r"(\d+)")


def is_structural(symbol: SymbolGraph, parameters: Mapping[str, np.ndarray]) -> bool:
    """Return whether parameters are named by blocks: all names have dots, or are words, and none is the symbol's."""
    known = {node.name for node in symbol.nodes if node.is_variable}
    return bool(parameters) and any("." in name for name in parameters) and not known & set(parameters)


def by_structure(symbol: SymbolGraph, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return parameters by their names in the symbol.

    Raises
    ------
    ModelError
        If there are more or fewer of a kind than in the symbol, or their shapes are not those that the symbol states.
    """
    kinds: dict[str, list[str]] = {}
    for name in parameters:
        kinds.setdefault(name.rpartition(".")[2], []).append(name)
    stated = {node.name: _shape(node.attributes) for node in symbol.nodes if node.is_variable}
    found = {}
    for kind, names in kinds.items():
        own = _ordered(symbol, kind)
        if len(own) != len(names):
            raise ModelError(
                f"[mxnet] got {len(names)} parameters of kind {kind!r} named by blocks, expected {len(own)}, as many as"
                " the symbol has: HybridBlock.export writes files that fit for certain"
            )
        for target, name in zip(own, names):
            known, shape = stated[target], parameters[name].shape
            fits = len(known) == len(shape) and all(a in (0, -1, b) for a, b in zip(known, shape))
            if known and not fits:
                raise ModelError(
                    f"[mxnet] got {name!r} of shape {shape} in the place of {target!r}, expected shape {known}:"
                    " HybridBlock.export writes files that fit for certain"
                )
            found[target] = parameters[name]
    return found


def _ordered(symbol: SymbolGraph, kind: str) -> list[str]:
    """Return the symbol's parameters of a kind in the order in which their layers were made."""
    runs: list[tuple[str, list[str]]] = []  # scopes in the order in which they compute
    for node in symbol.nodes:
        if not node.is_variable or not node.name.endswith(f"_{kind}"):
            continue
        scope = node.name[: -len(kind) - 1].rpartition("_")[0]
        if not runs or runs[-1][0] != scope:
            runs.append((scope, []))
        runs[-1][1].append(node.name)
    return [name for _, names in runs for name in sorted(names, key=_natural)]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key by which numbers in names sort as numbers."""
    return [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in DIGITS.split(name)]


def _shape(attributes: Mapping[str, str]) -> tuple[int, ...]:
    """Return the shape that a symbol states for a variable; nothing if it does not."""
    text = attributes.get("__shape__", "")
    try:
        return Attributes("variable", {"shape": text}).sizes("shape", (), low=-1) if text else ()
    except (ProblemError, RecursionError, MemoryError):
        return ()
