"""Symbols in files, as swap, check, tune and profile read them, and MXNet's errors in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clgraft.core.errors import hint
from clgraft.core.files import read_file
from clgraft.plugins.plugin import PluginError

_MESSAGE = re.compile(r"^\w*Error: (?:Error in operator (.*?): )?(?:\[[\d:]+\] )?(?:\S+\.(?:cc|h):\d+: )?(.*)", re.M)


def framework(purpose: str) -> tuple[Any, Callable[..., Any]]:
    """Return MXNet and `swap_symbol`.

    Parameters
    ----------
    purpose : str
        What MXNet is needed for, for the message.

    Raises
    ------
    PluginError
        If MXNet cannot be imported.
    """
    try:
        # ours first: it prepares what MXNet needs from newer NumPys
        from clgraft.mxnet_ops import swap_symbol  # isort: skip
        import mxnet
    except (ImportError, OSError) as error:
        raise PluginError(f"[mxnet] MXNet is needed to {purpose} and cannot be imported: {error}") from None
    return mxnet, swap_symbol


def read_graph(path: Path) -> dict[str, Any]:
    """Return the content of a symbol's file.

    Raises
    ------
    PluginError
        If it is no symbol.
    FileError
        If it cannot be read.
    """
    data = read_file(path, "mxnet", "a symbol's .json")
    try:
        graph = json.loads(data)
    except ValueError as error:
        raise PluginError(f"[mxnet] got {path}, which is no JSON: {error}") from None
    nodes = graph.get("nodes") if isinstance(graph, dict) and "heads" in graph else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise PluginError(f"[mxnet] got {path}, expected an MXNet symbol with nodes and heads")
    return graph


def load(mxnet: Any, path: Path, graph: Mapping[str, Any] | None = None) -> Any:
    """Return the symbol of a file, or of its changed content.

    Raises
    ------
    PluginError
        If MXNet cannot load it.
    """
    try:
        return mxnet.sym.load_json(json.dumps(read_graph(path) if graph is None else graph))
    except (mxnet.MXNetError, UnicodeDecodeError) as error:  # MXNet's own message may be cut inside a letter
        raise PluginError(f"[mxnet] got {path}, which MXNet cannot load: {reason(error)}") from None


def expect_shapes(mxnet: Any, symbol: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise `PluginError` unless shapes of inputs are known by name, fit, and say those of all arguments."""
    names = symbol.list_arguments()
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise PluginError(f"[mxnet] got a shape of {unknown[0]}, expected some of {names}{hint(unknown[0], names)}")
    try:
        known = symbol.infer_shape_partial(**{name: tuple(shape) for name, shape in shapes.items()})[0]
    except mxnet.MXNetError as error:
        raise PluginError(f"[mxnet] got shapes {dict(shapes)}, which do not fit: {reason(error)}") from None
    missing = [name for name, shape in zip(names, known) if not shape or 0 in shape]
    if missing:
        raise PluginError(f"[mxnet] got no shape of {missing[0]}, expected --shape {missing[0]}=N,N,...")


def reason(error: Exception) -> str:
    """Return the line of MXNet's error that says what is wrong, without its source files and times."""
    text = str(error).strip()
    found = _MESSAGE.search(text)
    if found:
        return f"{found[1]}: {found[2]}" if found[1] else found[2]
    lines = [line for line in text.splitlines() if not line.startswith(("Traceback", "  "))]
    return lines[0] if lines else text
