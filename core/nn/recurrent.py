"""Recurrent layers: vanilla cells, LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014).

One product computes the gates' share of all inputs, and one in each step that of the state before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clgraft.core.errors import ProblemError
from clgraft.core.nn import dropout, products, shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import SIGMOID
from clgraft.core.nn.expressions import with_own_gradient
from clgraft.core.nn.formulas import renamed


@dataclass(frozen=True)
class Cell:
    """What a step computes.

    Attributes
    ----------
    gates : int
        The weights have so many times as many rows as the state has elements.
    step : str
        Assigns the state y0, and y1, what an LSTM remembers, from the gates' share of the input x0, x1, ..., that of
        the state before, which follows, and what was remembered, or a GRU's state before, last.
    gradient : str
        Assigns dx0, ... (see `with_own_gradient`).
    reads_state : bool
        Whether the step reads the state before itself.
    remembers : bool
        Whether there is a y1.
    """

    gates: int
    step: str
    gradient: str
    reads_state: bool = False
    remembers: bool = False


def _sigmoid(value: str) -> str:
    return renamed(SIGMOID, {"x": f"({value})"})


LSTM_GATES = (
    f"real i = {_sigmoid('x0 + x4')}; real f = {_sigmoid('x1 + x5')}; real g = tanh(x2 + x6); "
    f"real o = {_sigmoid('x3 + x7')}; real c = f * x8 + i * g; "
)
GRU_GATES = f"real r = {_sigmoid('x0 + x3')}; real z = {_sigmoid('x1 + x4')}; real n = tanh(x2 + r * x5); "
CELLS: Mapping[str, Cell] = {
    "relu": Cell(1, "y0 = fmax(x0 + x1, 0);", "dx0 = y0 > 0 ? dy0 : 0; dx1 = y0 > 0 ? dy0 : 0;"),
    "tanh": Cell(1, "y0 = tanh(x0 + x1);", "dx0 = dy0 * (1 - y0 * y0); dx1 = dy0 * (1 - y0 * y0);"),
    # input, forget, new and output gate
    "lstm": Cell(
        4,
        f"{LSTM_GATES}y1 = c; y0 = o * tanh(c);",
        f"{LSTM_GATES}real t = tanh(c); real dc = dy1 + dy0 * o * (1 - t * t); real di = dc * g * i * (1 - i); "
        "real df = dc * x8 * f * (1 - f); real dg = dc * i * (1 - g * g); real da = dy0 * t * o * (1 - o); "
        "dx0 = di; dx1 = df; dx2 = dg; dx3 = da; dx4 = di; dx5 = df; dx6 = dg; dx7 = da; dx8 = dc * f;",
        remembers=True,
    ),
    # reset, update and new gate; the reset gate multiplies the state's share with its bias
    "gru": Cell(
        3,
        f"{GRU_GATES}y0 = (1 - z) * n + z * x6;",
        f"{GRU_GATES}real dn = dy0 * (1 - z) * (1 - n * n); real dz = dy0 * (x6 - n) * z * (1 - z); "
        "real dr = dn * x5 * r * (1 - r); "
        "dx0 = dr; dx1 = dz; dx2 = dn; dx3 = dr; dx4 = dz; dx5 = dn * r; dx6 = dy0 * z;",
        reads_state=True,
    ),
}


class Weights(NamedTuple):
    """The parameters of one direction of a layer.

    Attributes
    ----------
    w, r : Tensor
        (gates times size, inputs) and (gates times size, size).
    wb, rb : Tensor
        Biases (gates times size).
    """

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor


class States(NamedTuple):
    """What recurrent layers return.

    Attributes
    ----------
    y : Tensor
        The last layer's states of all steps (steps, batch, ways times size).
    h : Tensor
        The last state of each layer and way (layers times ways, batch, size).
    c : Tensor or None
        What each LSTM remembers in the end.
    """

    y: Tensor
    h: Tensor
    c: Tensor | None


def find_cell(name: str) -> Cell:
    """Return a cell by its name.

    Raises
    ------
    ProblemError
        If there is none.
    """
    if name not in CELLS:
        raise ProblemError(f"[recurrent] got cell {name!r}, expected one of {tuple(CELLS)}")
    return CELLS[name]


def extents(cell: str, inputs: int, size: int, layers: int, ways: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes of all weights, in the order of `unpacked`: w and r of each layer and way."""
    rows = find_cell(cell).gates * size
    found = []
    for layer in range(layers):
        found += [(rows, inputs if not layer else ways * size), (rows, size)] * ways
    return tuple(found)


def parameter_count(cell: str, inputs: int, size: int, layers: int, ways: int) -> int:
    """Return how many parameters there are."""
    biases = 2 * layers * ways * find_cell(cell).gates * size
    return sum(map(math.prod, extents(cell, inputs, size, layers, ways))) + biases


def unpacked(
    build: Build, parameters: Tensor, cell: str, inputs: int, size: int, layers: int, ways: int
) -> list[Weights]:
    """Return the parameters that one vector holds: all weights by layer, way, w and r, then all biases likewise."""
    found, rows = extents(cell, inputs, size, layers, ways), find_cell(cell).gates * size
    sizes = [*map(math.prod, found), *[rows] * len(found)]
    parts = shapes.split(build, parameters, 0, sizes)
    weights = [build.reshape(part, shape) for part, shape in zip(parts, found)]
    biases = parts[len(found) :]
    return [Weights(*weights[i : i + 2], *biases[i : i + 2]) for i in range(0, len(found), 2)]


def one_way(
    build: Build, cell: str, x: Tensor, weights: Weights, h: Tensor, c: Tensor | None = None, *, backward: bool = False
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Return the state of each step (batch, size), the last one, and what an LSTM remembers in the end.

    Parameters
    ----------
    x : Tensor
        (steps, batch, inputs).
    h, c : Tensor
        (batch, size), before the first step.
    backward : bool
        Whether the last step comes first.
    """
    found, (steps, batch, inputs), size = find_cell(cell), x.shape, weights.r.shape[1]
    fed = products.dense(build, build.reshape(x, (steps * batch, inputs)), weights.w, weights.wb)
    gates = _gates(build, fed, found.gates, size)
    timed = [shapes.split(build, build.reshape(gate, (steps, batch * size)), 0, [1] * steps) for gate in gates]
    states: list[Tensor] = [h] * steps
    for step in reversed(range(steps)) if backward else range(steps):
        own = [build.reshape(parts[step], (batch, size)) for parts in timed]
        held = _gates(build, products.dense(build, h, weights.r, weights.rb), found.gates, size)
        before = [h] if found.reads_state else [c] if found.remembers and c is not None else []
        made = with_own_gradient(build, found.step, found.gradient, [*own, *held, *before], 1 + found.remembers, {})
        h, c = made[0], made[1] if found.remembers else c
        states[step] = h
    return states, h, c if found.remembers else None


def _gates(build: Build, sums: Tensor, gates: int, size: int) -> tuple[Tensor, ...]:
    """Return the columns of each gate."""
    return shapes.split(build, sums, 1, [size] * gates) if gates > 1 else (sums,)


def layers(
    build: Build,
    cell: str,
    x: Tensor,
    weights: Sequence[Weights],
    h: Tensor,
    c: Tensor | None = None,
    *,
    ways: int = 1,
    rate: float = 0.0,
    keys: Sequence[Tensor] = (),
) -> States:
    """Return what layers on top of each other compute, in one direction or in both.

    Parameters
    ----------
    x : Tensor
        (steps, batch, inputs).
    weights : sequence of Weights
        Of each layer and way.
    h, c : Tensor
        The first states (layers times ways, batch, size).
    ways : int
        1, or 2: backward as well.
    rate : float
        Of the dropout of what enters all layers but the first when training; each has one of the keys.
    """
    steps, batch, _ = x.shape
    count, size = len(weights), weights[0].r.shape[1]
    first = [_apart(build, one, count, (batch, size)) if one is not None else [None] * count for one in (h, c)]
    last: list[tuple[Tensor, Tensor | None]] = []
    for layer in range(count // ways):
        if layer and rate and build.training:
            x = dropout.dropout(build, x, keys[layer - 1], rate)
        parts = []
        for way in range(ways):
            i = layer * ways + way
            begin = first[0][i]
            assert begin is not None
            states, *ends = one_way(build, cell, x, weights[i], begin, first[1][i], backward=way == 1)
            parts.append(_together(build, states, (steps, batch, size)))
            last.append((ends[0], ends[1]))
        x = parts[0] if ways == 1 else shapes.joined(build, parts, 2)
    shape = (count, batch, size)
    remembered = [end for _, end in last if end is not None]
    return States(
        x,
        _together(build, [state for state, _ in last], shape),
        _together(build, remembered, shape) if remembered else None,
    )


def _apart(build: Build, values: Tensor, count: int, shape: tuple[int, ...]) -> list[Tensor | None]:
    return [build.reshape(part, shape) for part in shapes.split(build, values, 0, [1] * count)]


def _together(build: Build, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return values one after the other in a shape."""
    return shapes.joined(build, [build.reshape(value, (1, *shape[1:])) for value in values], 0)
