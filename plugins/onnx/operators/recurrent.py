"""Recurrent layers."""

from __future__ import annotations

from clgraft.core.nn import recurrent as nn
from clgraft.core.nn import recurrent_cells as cells
from clgraft.core.nn.element_functions import Function, find
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.elementwise import SHAPED, UNARY
from clgraft.plugins.onnx.values import OnnxValue

EXTRA = {
    "Affine": ("linear", {"alpha": ("factor", 1.0), "beta": ("shift", 0.0)}),
    "ScaledTanh": ("scaled_tanh", {"alpha": ("alpha", 1.0), "beta": ("beta", 0.0)}),
}
# a cell's usual activations
USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
ORDERS = {"RNN": "h", "GRU": "zrn", "LSTM": "iofg"}  # of the gates in parameters; that of peepholes is iof


def activation(node: OnnxNode, number: int) -> Function:
    """Return one of the node's activations."""
    names = node.get("activations") or [*USUAL[node.operator]] * 2
    name = {n.lower(): n for n in (*UNARY, *SHAPED, *EXTRA)}.get(names[number].lower(), "")
    node.expect(bool(name), f"activation {names[number]}")
    alphas, betas = node.get("activation_alpha") or [], node.get("activation_beta") or []
    node.expect(not alphas or len(alphas) == len(names) or name in UNARY, "activation_alpha of some activations")
    if name in UNARY:
        found = find(UNARY[name])
    else:
        function, attributes = {**SHAPED, **EXTRA}[name]
        given = {"alpha": alphas[number : number + 1], "beta": betas[number : number + 1]}
        found = find(function).given(
            **{scalar: (given.get(key) or [usual])[0] for key, (scalar, usual) in attributes.items()}
        )
    clip = node.get("clip")
    return found if clip is None else cells.limited(found, clip)


def cell(node: OnnxNode, way: int, peepholes: bool) -> cells.Cell:
    """Return the cell of one of the node's directions."""
    count = len(USUAL[node.operator])
    functions = [activation(node, way * count + i) for i in range(count)]
    if node.operator == "LSTM":
        return cells.lstm(*functions, peepholes=peepholes)
    if node.operator == "GRU":
        return cells.gru(*functions, reset_after=bool(node.get("linear_before_reset", 0)))
    return cells.vanilla(*functions)


@operator(*USUAL)
def recurrent(
    on: ModelBuilder,
    node: OnnxNode,
    x: OnnxValue,
    w: OnnxValue,
    r: OnnxValue,
    b: OnnxValue | None = None,
    lengths: OnnxValue | None = None,
    h: OnnxValue | None = None,
    c: OnnxValue | None = None,
    p: OnnxValue | None = None,
) -> list[OnnxValue | None]:
    """Lower a recurrent layer, in one direction or in both."""
    batch_first, ways = bool(node.get("layout", 0)), w.shape[0]
    if batch_first:
        x = on.transposed(x, (1, 0, 2))
        h, c = (None if one is None else on.transposed(one, (1, 0, 2)) for one in (h, c))
    if lengths is not None:
        node.expect(set(on.numbers(lengths)) <= {x.shape[0]}, "sequences of different lengths")
    node.expect(not node.get("input_forget", 0), "input_forget")
    on.budget.spend("turns", x.shape[0] * ways, node)
    carrier = on.carrier(x)
    bias, first, memory, peepholes = (None if one is None else on.given(one, carrier) for one in (b, h, c, p))
    y, *finals = nn.layer(
        on.build,
        [cell(node, way, p is not None) for way in range(ways)],
        on.given(x),
        nn.unstacked(on.build, on.given(w, carrier), on.given(r, carrier), bias, peepholes, "iof"),
        first,
        memory,
        order=ORDERS[node.operator],
        backward=node.get("direction", "forward") == "reverse",
    )
    results = [None if one is None else on.taken(one, x.dtype) for one in (y, *finals)]
    if batch_first:
        orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = [one if one is None else on.transposed(one, order) for one, order in zip(results, orders)]
    return results
