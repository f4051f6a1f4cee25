"""Finds operators through which MXNet passes shapes backwards, from an operator to the variables before it.

A convolution tells the shape of its weight, and a sum that of its other term. If the weight is `tanh(w)`, MXNet passes
the shape on to `w`: its elementwise operators infer inputs from outputs. A Custom operator is not told the shapes of
its outputs, so those in between stay MXNet's, unless the variables before them declare their shapes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import mxnet as mx

from clgraft.mxnet_ops.guards.unsized import SAME_SHAPE
from clgraft.mxnet_ops.swap.asked import Key, graph_of, key_of
from clgraft.mxnet_ops.swap.table import plain_name

# operators that tell the shapes of all inputs but the first
LAYERS = {
    *("Convolution", "Deconvolution", "FullyConnected", "Embedding", "RNN"),
    *("BatchNorm", "_contrib_SyncBatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "LeakyReLU"),
    *("SequenceMask", "SequenceLast", "SequenceReverse"),
    *("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput"),
}
# joins the parameters of a recurrent layer, whose number it is told by that layer
FLAT_PARAMETERS = "_rnn_param_concat"
MOST_AXES = 5
JsonNode = Mapping[str, Any]


def passing_back(nodes: Sequence[JsonNode], sized: Collection[str] = ()) -> set[int]:
    """Return the operators of a graph that have to stay, so that variables before them get their shapes.

    `sized` names variables whose shapes are given in any case.
    """
    nodes = [_declared(node) if node["op"] == "null" and node["name"] in sized else node for node in nodes]
    found: set[int] = set()
    roots: list[frozenset[str]] = []
    for number, node in enumerate(nodes):
        roots.append(_roots(node, number, roots))
        sources = [entry[0] for entry in node["inputs"]]
        name = plain_name(node["op"])
        if node["op"] == FLAT_PARAMETERS:
            found |= _undeclared(nodes, number)
        for place, source in enumerate(sources):
            if name in LAYERS and place:
                _follow(nodes, source, frozenset(), found)
            elif name in SAME_SHAPE:
                told = frozenset().union(*(roots[other] for other in sources[:place] + sources[place + 1 :]))
                _follow(nodes, source, told, found, roots)
    return found


def _roots(node: JsonNode, number: int, roots: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the variables from whose shapes an operator's follows; something unique for a shape that is known."""
    if not node["inputs"]:
        known = node["op"] != "null" or _is_declared(node)
        return frozenset({f"known {number}" if known else node["name"]})
    sources = [entry[0] for entry in node["inputs"]]
    return frozenset().union(*(roots[source] for source in (sources[:1] if node["op"] in LAYERS else sources)))


def _follow(
    nodes: Sequence[JsonNode],
    number: int,
    told: frozenset[str],
    found: set[int],
    roots: Sequence[frozenset[str]] | None = None,
) -> bool:
    """Add the operators before an input that lead to variables of unknown shape, and return whether any do.

    With `roots` the shape that is passed back follows from the variables `told`: it is news for the others alone.
    """
    node = nodes[number]
    if node["op"] == "null":
        return not _is_declared(node) and (roots is None or bool(told - {node["name"]}))
    if not node["inputs"]:
        return False
    inferred = _inferred_inputs(node["op"], key_of(node.get("attrs", {})), len(node["inputs"]))
    leads = [_follow(nodes, node["inputs"][place][0], told, found, roots) for place in inferred]
    if any(leads):
        found.add(number)
    return any(leads)


def _undeclared(nodes: Sequence[JsonNode], number: int) -> set[int]:
    """Return an operator and those before it, as far as they lead to variables of unknown shape."""
    node, found = nodes[number], set()
    if node["op"] == "null":
        return set() if _is_declared(node) else {number}
    for entry in node["inputs"]:
        found |= _undeclared(nodes, entry[0])
    return found | {number} if found else found


def _declared(node: JsonNode) -> JsonNode:
    """Return a variable with some shape: only that it has one counts here."""
    return {**node, "attrs": {**node.get("attrs", {}), "__shape__": "(1,)"}}


def _is_declared(node: JsonNode) -> bool:
    try:
        shape = ast.literal_eval(node.get("attrs", {}).get("__shape__", "()"))
    except (ValueError, SyntaxError):
        return False
    return bool(shape) and all(size > 0 for size in shape)


@lru_cache(maxsize=1024)
def _inferred_inputs(operator: str, attributes: Key, inputs: int) -> tuple[int, ...]:
    """Return the inputs of an operator whose shapes MXNet infers from that of its output: it is asked."""
    more = (
        {"op": "null", "name": "like", "inputs": []},
        {"op": "elemwise_add", "name": "sum", "inputs": [[inputs, 0, 0], [inputs + 1, 0, 0]]},
    )
    try:
        symbol = graph_of(operator, attributes, inputs, *more)
    except mx.MXNetError:
        return ()
    names = symbol.list_arguments()
    for axes in range(1, MOST_AXES + 1):
        try:
            shape = (4,) * axes
            _, outputs, _ = symbol.infer_shape_partial(**{f"x{i}": shape for i in range(inputs)})
            found, _, _ = symbol.infer_shape_partial(like=outputs[0])
        except mx.MXNetError:
            continue
        if outputs[0] and found:
            shapes = dict(zip(names, found))
            return tuple(i for i in range(inputs) if shapes.get(f"x{i}") and min(shapes[f"x{i}"]) > 0)
    return ()
