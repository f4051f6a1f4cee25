"""Recurrent layers: one matrix product for all inputs, then one per step for the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from clgraft.core.nn import recurrent_cells as nn
from clgraft.core.nn.recurrent_cells import Activation
from clgraft.plugins.onnx.lowering import ModelBuilder
from clgraft.plugins.onnx.nodes import OnnxNode, operator
from clgraft.plugins.onnx.operators.elementwise import SHAPED, UNARY, of_one
from clgraft.plugins.onnx.operators.linear import product
from clgraft.plugins.onnx.operators.shapes import joined, sliced
from clgraft.plugins.onnx.values import OnnxValue, known

EXTRA = {
    "Affine": ("linear", {"alpha": ("factor", 1.0), "beta": ("shift", 0.0)}),
    "ScaledTanh": ("scaled_tanh", {"alpha": ("alpha", 1.0), "beta": ("beta", 0.0)}),
}


def activation(node: OnnxNode, number: int) -> Activation:
    """Return the text of one of the node's activations, as a function of the text of its argument."""
    names = node.get("activations") or [*CELLS[node.operator].activations] * 2
    name = {n.lower(): n for n in (*UNARY, *SHAPED, *EXTRA)}.get(names[number].lower(), "")
    node.expect(bool(name), f"activation {names[number]}")
    alphas, betas = node.get("activation_alpha") or [], node.get("activation_beta") or []
    node.expect(not alphas or len(alphas) == len(names) or name in UNARY, "activation_alpha of some activations")
    clip = node.get("clip")

    def apply(text: str) -> str:
        if clip is not None:
            text = nn.within(text, clip)
        if name in UNARY:
            return of_one(UNARY[name], f"({text})")
        function, attributes = {**SHAPED, **EXTRA}[name]
        given = {"alpha": alphas[number : number + 1], "beta": betas[number : number + 1]}
        scalars = {scalar: (given.get(key) or [usual])[0] for key, (scalar, usual) in attributes.items()}
        return of_one(function, f"({text})", **scalars)

    return apply


@operator("RNN", "GRU", "LSTM")
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
    if node.get("layout", 0):
        x = on.transposed(x, (1, 0, 2))
        h = on.transposed(h, (1, 0, 2)) if h is not None else None
        c = on.transposed(c, (1, 0, 2)) if c is not None else None
    steps, batch, _ = x.shape
    if lengths is not None:
        node.expect(set(on.numbers(lengths)) <= {steps}, "sequences of different lengths")
    direction = node.get("direction", "forward")
    on.budget.spend("turns", steps * w.shape[0], node)
    found: list[tuple[OnnxValue, OnnxValue, OnnxValue | None]] = []
    for way in range(w.shape[0]):
        parts = [_part(on, value, way) for value in (w, r, b, h, c, p)]
        found.append(_one_way(on, node, x, parts, way, direction == "reverse" or way == 1))
    ys = [on.reshaped(one[0], (steps, 1, batch, r.shape[-1])) for one in found]
    y = joined(on, ys, 1)
    finals: list[OnnxValue | None] = []
    for last in ([one[1] for one in found], [one[2] for one in found]):
        some = [value for value in last if value is not None]
        finals.append(joined(on, [on.reshaped(v, (1, *v.shape)) for v in some], 0) if some else None)
    if node.get("layout", 0):
        y = on.transposed(y, (2, 0, 1, 3))
        finals = [value if value is None else on.transposed(value, (1, 0, 2)) for value in finals]
    return [y, *finals]


def _part(on: ModelBuilder, value: OnnxValue | None, way: int) -> OnnxValue | None:
    """Return a direction's share of a parameter."""
    if value is None:
        return None
    shape = value.shape[1:]
    return on.reshaped(sliced(on, value, [way, *(0 for _ in shape)], (1, *shape)), shape)


def _one_way(
    on: ModelBuilder, node: OnnxNode, x: OnnxValue, parts: Sequence[OnnxValue | None], way: int, backward: bool
) -> tuple[OnnxValue, OnnxValue, OnnxValue | None]:
    """Return the states of all steps, the last state, and an LSTM's last cell."""
    w, r, b, h, c, p = parts
    assert w is not None and r is not None
    kind, (steps, batch, inputs) = CELLS[node.operator], x.shape
    size, gates = r.shape[-1], kind.gates
    rows = on.reshaped(x, (steps * batch, inputs))
    fed = on.reshaped(product(on, rows, w, True), (steps, batch, gates * size))
    zeros = known(np.zeros((batch, size), x.dtype))
    wb = rb = known(np.zeros(gates * size, x.dtype))
    if b is not None:
        wb, rb = (sliced(on, b, [i * gates * size], [gates * size]) for i in range(2))
    count = len(kind.activations)
    functions = tuple(activation(node, way * count + i) for i in range(count))
    cell = kind.make(on, node, Parts(functions, (wb, rb), r, p, size))
    state, memory, states = h or zeros, c or zeros, []
    for turn in range(steps):
        at = steps - 1 - turn if backward else turn
        now = on.reshaped(sliced(on, fed, [at, 0, 0], [1, batch, gates * size]), (batch, gates * size))
        state, memory = cell(now, state, memory)
        states.append(on.reshaped(state, (1, batch, size)))
    whole = joined(on, states[::-1] if backward else states, 0)
    return whole, state, memory if node.operator == "LSTM" else None


def _gate(on: ModelBuilder, value: OnnxValue, number: int, size: int) -> OnnxValue:
    """Return one gate's columns, or its share of a bias."""
    begin = [*(0 for _ in value.shape[:-1]), number * size]
    return sliced(on, value, begin, (*value.shape[:-1], size))


class Parts(NamedTuple):
    """What the cell of a direction is made of.

    Attributes
    ----------
    functions : tuple of callable
        Its activations.
    biases : tuple of OnnxValue
        Of the input's share and of the state's.
    r : OnnxValue
        The weights of the state.
    p : OnnxValue or None
        Those of the peepholes.
    size : int
        Of the state.
    """

    functions: tuple[Activation, ...]
    biases: tuple[OnnxValue, OnnxValue]
    r: OnnxValue
    p: OnnxValue | None
    size: int


# the input's share, the state and the memory -> the next state and memory
Cell = Callable[[OnnxValue, OnnxValue, OnnxValue], "tuple[OnnxValue, OnnxValue]"]


def _rnn(on: ModelBuilder, node: OnnxNode, parts: Parts) -> Cell:
    (f,) = parts.functions

    def cell(now: OnnxValue, state: OnnxValue, memory: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
        fed = product(on, state, parts.r, True)
        return on.pointwise(f(nn.SHARES), [now, fed, *parts.biases]), memory

    return cell


def _gru(on: ModelBuilder, node: OnnxNode, parts: Parts) -> Cell:
    (f, g), size = parts.functions, parts.size
    after = bool(node.get("linear_before_reset", 0))
    rows = [sliced(on, parts.r, [i * size, 0], [size, size]) for i in range(3)]
    biased = [[_gate(on, b, i, size) for b in parts.biases] for i in range(3)]

    def cell(now: OnnxValue, state: OnnxValue, memory: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
        z, reset = (
            on.pointwise(f(nn.SHARES), [_gate(on, now, i, size), product(on, state, rows[i], True), *biased[i]])
            for i in range(2)
        )
        own, (wb, rb) = _gate(on, now, 2, size), biased[2]
        if after:
            text, values = nn.GRU_SHARES_RESET_AFTER, [own, product(on, state, rows[2], True), wb, rb, reset]
        else:
            held = on.pointwise(nn.GRU_HELD, [reset, state])
            text, values = nn.SHARES, [own, product(on, held, rows[2], True), wb, rb]
        new = on.pointwise(g(text), values)
        return on.pointwise(nn.GRU_STATE, [z, new, state]), memory

    return cell


def _lstm(on: ModelBuilder, node: OnnxNode, parts: Parts) -> Cell:
    (f, g, h), size, p = parts.functions, parts.size, parts.p
    node.expect(not node.get("input_forget", 0), "input_forget")
    peeps = [_gate(on, p, i, size) if p is not None else known(np.zeros(size, parts.r.dtype)) for i in range(3)]

    def cell(now: OnnxValue, state: OnnxValue, memory: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
        sums = on.pointwise(nn.SHARES, [now, product(on, state, parts.r, True), *parts.biases])
        i, o, forget, c = (_gate(on, sums, n, size) for n in range(4))
        new = on.pointwise(nn.lstm_memory(f, g), [i, forget, c, memory, peeps[2], peeps[0]])
        return on.pointwise(nn.lstm_state(f, h), [o, new, peeps[1]]), new

    return cell


class Kind(NamedTuple):
    """A kind of cells.

    Attributes
    ----------
    gates : int
        The weights have so many times as many rows as the state has elements.
    activations : tuple of str
        By default.
    make : callable
        Returns a direction's cell.
    """

    gates: int
    activations: tuple[str, ...]
    make: Callable[[ModelBuilder, OnnxNode, Parts], Cell]


CELLS = {
    "RNN": Kind(1, ("Tanh",), _rnn),
    "GRU": Kind(3, ("Sigmoid", "Tanh"), _gru),
    "LSTM": Kind(4, ("Sigmoid", "Tanh", "Tanh"), _lstm),
}
