"""Finds arrays whose sizes follow only from operators after them, such as the begin state of a recurrent net.

`zeros(shape=(0, n))` is an array of unknown batch. MXNet's own operators pass the batch back from a later sum with an
array of known shape; a Custom operator is not told the shapes of its outputs and cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from clgraft.mxnet_ops.engine.operator import FAMILIES, find_operator

# operators whose inputs and output have one shape, which MXNet infers from any of them
SAME_SHAPE = {
    *("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "add_n", "where", "_grad_add"),
    *("_maximum", "_minimum", "_power", "_hypot", "_identity_with_attr_like_rhs", "_mod"),
    *("_plus", "_Plus", "_add", "_minus", "_Minus", "_sub", "_mul", "_Mul", "_div", "_Div"),
    *("_Maximum", "_Minimum", "_Power", "_Hypot", "ElementWiseSum", "_sum"),
}
# operators whose first input tells the sizes of all others, and of their outputs
TELLING = ("RNN", "Embedding")
JOINING = ("Concat", "concat")  # sizes of the other axes follow from any input


def unsized_nodes(nodes: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the nodes of a graph, in order, whose outputs have sizes that no operator before them tells."""
    found: set[int] = set()
    for number, node in enumerate(nodes):
        if not node["inputs"]:
            if node["op"] != "null" and _lacks_sizes(node.get("attrs", {})):
                found.add(number)
            continue
        unsized = [entry[0] in found for entry in node["inputs"][: 1 if _tells(node) else None]]
        if all(unsized) or (any(unsized) and not (shares_shape(node) or node["op"] in JOINING)):
            found.add(number)
    return found


def _tells(node: Mapping[str, Any]) -> bool:
    """Return whether a node's first input tells the sizes of all others."""
    return node["op"] in TELLING or node.get("attrs", {}).get("function") in TELLING


def shares_shape(node: Mapping[str, Any]) -> bool:
    """Return whether the shapes of a node's inputs and output are one, which follows from any input of known shape."""
    if node["op"] != "Custom":
        return node["op"] in SAME_SHAPE
    attributes = dict(node["attrs"])
    op_type = attributes.pop("op_type")
    if op_type not in FAMILIES:
        return False
    operator = find_operator(op_type, attributes)
    return operator.inferred == operator.arguments


def _lacks_sizes(attributes: Mapping[str, str]) -> bool:
    try:
        shape = ast.literal_eval(attributes.get("shape", "()"))
    except (ValueError, SyntaxError):
        return False
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return any(size in (0, -1) for size in sizes)
