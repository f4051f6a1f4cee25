"""Recurrent layers: vanilla cells, LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014).

One product computes the gates' share of all inputs, and one in each step that of the state before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clgraft.core.errors import ProblemError
from clgraft.core.nn import dropout, elementwise, products, shapes
from clgraft.core.nn.activations import activated
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import SIGMOID
from clgraft.core.nn.expressions import evaluated, with_own_gradient
from clgraft.core.nn.formulas import renamed
from clgraft.core.operators.dense import DenseProblem

GATES = "ifgo"  # of an LSTM: input, forget, new, output


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
        Assigns dx0, ... from these, the gradients dy0 and dy1, and y0.
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
    build: Build,
    cell: str,
    x: Tensor,
    weights: Weights,
    h: Tensor,
    c: Tensor | None = None,
    *,
    backward: bool = False,
    keep: Tensor | None = None,
    fed: Tensor | None = None,
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
    keep : Tensor, optional
        (steps, batch): factors of the states that each step reads, without a gradient.
    fed : Tensor, optional
        (batch, gates times size): what all steps add to the gates.
    """
    found, (steps, batch, inputs), size = find_cell(cell), x.shape, weights.r.shape[1]
    share, more = products.dense(build, build.reshape(x, (steps * batch, inputs)), weights.w, weights.wb), fed
    fed = share if more is None else _with_more(build, share, more)
    kept = [] if keep is None else [build.reshape(one, (batch, 1)) for one in shapes.split(build, keep, 0, [1] * steps)]
    first, begin = build.here, (h, c)
    gates = _gates(build, fed, found.gates, size)
    timed = [shapes.split(build, build.reshape(gate, (steps, batch * size)), 0, [1] * steps) for gate in gates]
    done: list[_Step] = []
    for at in reversed(range(steps)) if backward else range(steps):
        own = [build.reshape(parts[at], (batch, size)) for parts in timed]
        factor = kept[at] if kept else None
        h, c = _kept(build, h, factor), None if c is None else _kept(build, c, factor)
        held = _gates(build, products.dense(build, h, weights.r, weights.rb), found.gates, size)
        before = [h] if found.reads_state else [c] if found.remembers and c is not None else []
        known = {f"x{i}": value for i, value in enumerate((*own, *held, *before))}
        made = evaluated(build, found.step, known, dict.fromkeys(("y0", "y1")[: 1 + found.remembers]))
        done.append(_Step(at, known, made, h, factor))
        h, c = made[0], made[1] if found.remembers else c
    last = done[-1].made
    inputs_of = (fed, weights.r, weights.rb, begin[0], *((begin[1],) if found.remembers and begin[1] else ()))
    build.state_gradient(
        first,
        inputs_of,
        (*(step.made[0] for step in done), *last[1:]),
        lambda build, dys, wanted: _gradients(build, found, weights.r, done, dys),
    )
    states = [step.made[0] for step in sorted(done, key=lambda step: step.at)]
    return states, last[0], last[1] if found.remembers else None


def _with_more(build: Build, fed: Tensor, more: Tensor) -> Tensor:
    """Return what the inputs of all steps add to the gates, with what is added in every step."""
    each = build.reshape(fed, (fed.size // max(1, more.size), *more.shape))
    return build.reshape(elementwise.binary(build, "add", each, build.reshape(more, (1, *more.shape))), fed.shape)


def _kept(build: Build, state: Tensor, factor: Tensor | None) -> Tensor:
    """Return a state times the factor of each example, if there are factors."""
    return state if factor is None else build.pointwise("y0 = x0 * x1;", [state, factor])[0]


class _Step(NamedTuple):
    """A step that was computed: where in time, what it read and made by name, the state before, and its factor."""

    at: int
    known: Mapping[str, Tensor]
    made: tuple[Tensor, ...]
    before: Tensor
    factor: Tensor | None


def _gradients(
    build: Build, cell: Cell, r: Tensor, done: Sequence[_Step], dys: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Return the gradients of what all inputs add to gates, of r, its bias, and the states before the first step."""
    size, gates = r.shape[1], cell.gates
    batch = done[0].before.shape[0]
    dh, dc = None, dys[len(done)] if cell.remembers else None
    shares: list[tuple[Tensor, Tensor]] = [(r, r)] * len(done)  # of the input and of the state before, by time
    for step, given in zip(reversed(done), reversed(dys[: len(done)])):
        total = _sum(build, [one for one in (dh, given) if one is not None], step.made[0])
        known = {**step.known, "y0": step.made[0], "dy0": total}
        if cell.remembers:
            known["dy1"] = _sum(build, [dc] if dc is not None else [], step.made[0])
        names = [f"dx{i}" for i in range(len(step.known))]
        found = [
            build.reshape(one, (batch, size)) for one in evaluated(build, cell.gradient, known, dict.fromkeys(names))
        ]
        own, held = (_joined_gates(build, found[i : i + gates]) for i in (0, gates))
        shares[step.at] = own, held
        back = DenseProblem("backward_data", batch, size, gates * size, dtype=r.dtype)
        (dh,) = build.add(back, held, r)
        if cell.reads_state:
            dh = _sum(build, [dh, found[-1]], dh)
        elif cell.remembers:
            dc = _kept(build, found[-1], step.factor)
        dh = _kept(build, dh, step.factor)
    rows = len(done) * batch
    dfed, dheld = (_stacked(build, [share[i] for share in shares], (rows, gates * size)) for i in (0, 1))
    before = _stacked(build, [step.before for step in sorted(done, key=lambda step: step.at)], (rows, size))
    (dr,) = build.add(DenseProblem("backward_weight", rows, size, gates * size, dtype=r.dtype), before, dheld)
    (drb,) = build.add(DenseProblem("backward_bias", rows, size, gates * size, dtype=r.dtype), dheld)
    assert dh is not None
    return dfed, dr, drb, dh, *((dc,) if cell.remembers and dc is not None else ())


def _sum(build: Build, values: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the sum of one or two values, or zeros."""
    if len(values) == 1:
        return build.reshape(values[0], like.shape)
    if not values:
        return build.zeros(like)
    return build.pointwise("y0 = x0 + x1;", [build.reshape(value, like.shape) for value in values])[0]


def _joined_gates(build: Build, values: Sequence[Tensor]) -> Tensor:
    return shapes.joined(build, values, 1) if len(values) > 1 else values[0]


def _stacked(build: Build, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return values below each other as rows."""
    return build.reshape(_together(build, values, (len(values), *values[0].shape)), shape)


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


def continued(
    build: Build,
    cell: str,
    x: Tensor,
    parameters: Sequence[Tensor],
    keep: Tensor,
    first: Sequence[Tensor] = (),
    *,
    static: Tensor | None = None,
    gates: str = GATES,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the states of all steps (steps, batch, size), the last one, and what an LSTM remembers in the end.

    Parameters
    ----------
    x : Tensor
        (steps, batch, ...).
    parameters : sequence of Tensor
        The weights of x and a bias, with `static` the weights of that, and the weights of the states.
    keep : Tensor
        As of `one_way`.
    first : sequence of Tensor
        The first states, zeros by default.
    static : Tensor, optional
        (batch, ...): what all steps read.
    gates : str
        The order of an LSTM's gates in the parameters, by their first letters.
    """
    (steps, batch), rest = x.shape[:2], list(parameters)
    w, b, fed = _in_order(build, rest.pop(0), gates), _in_order(build, rest.pop(0), gates), None
    if static is not None:
        flat = build.reshape(static, (batch, static.size // max(1, batch)))
        fed = products.dense(build, flat, _in_order(build, rest.pop(0), gates))
    size = rest[0].shape[1]
    weights = Weights(w, _in_order(build, rest.pop(0), gates), b, build.filled(b.shape, 0.0))
    begin = [build.reshape(one, (batch, size)) for one in first]
    begin = begin or [build.filled((batch, size), 0.0)] * (1 + find_cell(cell).remembers)
    h, *c = begin
    x = build.reshape(x, (steps, batch, w.shape[1]))
    states, last, remembered = one_way(build, cell, x, weights, h, c[0] if c else None, keep=keep, fed=fed)
    return _together(build, states, (len(states), *last.shape)), last, remembered


def _in_order(build: Build, parameter: Tensor, gates: str) -> Tensor:
    """Return a parameter of an LSTM whose gates have another order along the first axis."""
    if gates == GATES:
        return parameter
    parts = shapes.split(build, parameter, 0, [parameter.shape[0] // len(gates)] * len(gates))
    named = dict(zip(gates, parts))
    return shapes.joined(build, [named[gate] for gate in GATES], 0)


def read_out(build: Build, states: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return what a net shows of its states (steps, batch, size): tanh(w states + b)."""
    rows = build.reshape(states, (states.size // states.shape[-1], states.shape[-1]))
    return build.reshape(activated(build, products.dense(build, rows, w, b), "tanh"), states.shape)


def lstm_unit(build: Build, c: Tensor, gates: Tensor, keep: Tensor, order: str = GATES) -> tuple[Tensor, ...]:
    """Return what `lstm_step` does of the sums of all gates (1, batch, gates times size), in an order of theirs."""
    named = dict(zip(order, shapes.split(build, gates, 2, [c.shape[2]] * len(order))))
    kept = build.reshape(keep, (*c.shape[:2], 1))
    return lstm_step(build, [named[gate] for gate in GATES], c, kept)


def lstm_step(build: Build, gates: Sequence[Tensor], c: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
    """Return what an LSTM remembers after a step, and its state.

    Parameters
    ----------
    gates : sequence of Tensor
        Of the input, forget, new and output gate, before their functions are taken.
    c : Tensor
        What it remembered before.
    keep : Tensor
        Factors of that, which broadcast and have no gradient.
    """
    values = (
        f"real i = {_sigmoid('x0')}; real f = {_sigmoid('x1')}; real g = tanh(x2); real o = {_sigmoid('x3')}; "
        "real c = x5 * f * x4 + i * g; real t = tanh(c); "
    )
    gradient = (
        f"{values}real dc = dy0 + dy1 * o * (1 - t * t); dx0 = dc * g * i * (1 - i); dx1 = dc * x5 * x4 * f * (1 - f); "
        "dx2 = dc * i * (1 - g * g); dx3 = dy1 * t * o * (1 - o); dx4 = dc * x5 * f;"
    )
    return with_own_gradient(build, f"{values}y0 = c; y1 = o * t;", gradient, [*gates, c, keep], 2, {})


def _apart(build: Build, values: Tensor, count: int, shape: tuple[int, ...]) -> list[Tensor | None]:
    return [build.reshape(part, shape) for part in shapes.split(build, values, 0, [1] * count)]


def _together(build: Build, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return values one after the other in a shape."""
    return shapes.joined(build, [build.reshape(value, (1, *shape[1:])) for value in values], 0)
