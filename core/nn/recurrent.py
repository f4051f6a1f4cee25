"""Recurrent layers of the cells in `recurrent_cells`, in one direction or in both.

One product computes the gates' share of all inputs, and one in each step that of the state before. In which order
parameters hold the gates is an argument: MXNet and PyTorch, ONNX, and Caffe differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clgraft.core.nn import dropout, elementwise, products, recurrent_cells, shapes
from clgraft.core.nn.activations import activated
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.expressions import evaluated, with_own_gradient
from clgraft.core.nn.recurrent_cells import PEEPHOLES, SIGMOID, TANH, Cell, find_cell
from clgraft.core.operators.dense import DenseProblem


class Weights(NamedTuple):
    """The parameters of one direction of a layer.

    Attributes
    ----------
    w, r : Tensor
        (gates times size, inputs) and (gates times size, size).
    wb, rb : Tensor or None
        Biases (gates times size), if there are any.
    p : sequence of Tensor
        (size,) for each of the cell's peepholes.
    """

    w: Tensor
    r: Tensor
    wb: Tensor | None = None
    rb: Tensor | None = None
    p: Sequence[Tensor] = ()


class States(NamedTuple):
    """What recurrent layers return.

    Attributes
    ----------
    y : Tensor
        The last layer's states of all steps: of `layers` (steps, batch, ways times size), of `layer` (steps, ways,
        batch, size).
    h : Tensor
        The last state of each layer and way (layers times ways, batch, size).
    c : Tensor or None
        What each LSTM remembers in the end.
    """

    y: Tensor
    h: Tensor
    c: Tensor | None


# parameters


def extents(cell: str, inputs: int, size: int, layers: int, ways: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes of all weights, in the order of `unpacked`: w and r of each layer and way."""
    rows = len(find_cell(cell).gates) * size
    found = []
    for layer in range(layers):
        found += [(rows, inputs if not layer else ways * size), (rows, size)] * ways
    return tuple(found)


def parameter_count(cell: str, inputs: int, size: int, layers: int, ways: int) -> int:
    """Return how many parameters there are."""
    biases = 2 * layers * ways * len(find_cell(cell).gates) * size
    return sum(map(math.prod, extents(cell, inputs, size, layers, ways))) + biases


def unpacked(
    build: Build, parameters: Tensor, cell: str, inputs: int, size: int, layers: int, ways: int
) -> list[Weights]:
    """Return the parameters that one vector holds: all weights by layer, way, w and r, then all biases likewise."""
    found, rows = extents(cell, inputs, size, layers, ways), len(find_cell(cell).gates) * size
    sizes = [*map(math.prod, found), *[rows] * len(found)]
    parts = shapes.split(build, parameters, 0, sizes)
    weights = [build.reshape(part, shape) for part, shape in zip(parts, found)]
    biases = parts[len(found) :]
    return [Weights(*weights[i : i + 2], *biases[i : i + 2]) for i in range(0, len(found), 2)]


def unstacked(
    build: Build, w: Tensor, r: Tensor, b: Tensor | None = None, p: Tensor | None = None, peepholes: str = ""
) -> list[Weights]:
    """Return the parameters that arrays hold for all ways, which are the first axis.

    Parameters
    ----------
    b : Tensor, optional
        (ways, twice gates times size): biases of the input's share, then of the state's.
    p : Tensor, optional
        (ways, peepholes times size)
    peepholes : str
        The order in which p holds those of an LSTM, by their gates' letters.
    """
    ways, rows, size = r.shape
    ws, rs = (_apart(build, one, ways, one.shape[1:]) for one in (w, r))
    biases: list[Tensor | None] = [None] * (2 * ways)
    if b is not None:
        biases = [*_apart(build, b, 2 * ways, (rows,))]
    holes: list[Sequence[Tensor]] = [()] * ways
    if p is not None:
        parts = [dict(zip(peepholes, _apart(build, one, 3, (size,)))) for one in _apart(build, p, ways, p.shape[1:])]
        holes = [[named[gate] for gate in PEEPHOLES] for named in parts]
    return [Weights(ws[i], rs[i], biases[2 * i], biases[2 * i + 1], holes[i]) for i in range(ways)]


# one direction


def one_way(
    build: Build,
    cell: Cell,
    x: Tensor,
    weights: Weights,
    h: Tensor | None = None,
    c: Tensor | None = None,
    *,
    order: str = "",
    backward: bool = False,
    keep: Tensor | None = None,
    fed: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Return the state of each step (batch, size), the last one, and what an LSTM remembers in the end.

    Parameters
    ----------
    x : Tensor
        (steps, batch, inputs).
    h, c : Tensor, optional
        (batch, size), before the first step; zeros by default.
    order : str
        In which parameters hold the gates, by their letters; by default the cell's own order.
    backward : bool
        Whether the last step comes first.
    keep : Tensor, optional
        (steps, batch): factors of the states that each step reads, without a gradient.
    fed : Tensor, optional
        (batch, gates times size): what all steps add to the gates.
    """
    (steps, batch, inputs), size = x.shape, weights.r.shape[1]
    order = order or cell.gates
    share, more = products.dense(build, build.reshape(x, (steps * batch, inputs)), weights.w, weights.wb), fed
    fed = share if more is None else _with_more(build, share, more)
    kept = [None] * steps if keep is None else _apart(build, keep, steps, (batch, 1))
    h = build.filled((batch, size), 0.0, x.dtype) if h is None else h
    if cell.remembers and c is None:
        c = build.filled((batch, size), 0.0, x.dtype)
    first, shares = build.here, _Shares(build, cell, weights, order, fed, steps)
    begin = (h, c) if cell.remembers and c is not None else (h,)
    done: list[_Step] = []
    for at in reversed(range(steps)) if backward else range(steps):
        h, c = _kept(build, h, kept[at]), None if c is None else _kept(build, c, kept[at])
        before = [h] if cell.reads_state else [c] if cell.remembers and c is not None else []
        read = (*shares.of_step(at, h), *before, *weights.p)
        known = {f"x{i}": value for i, value in enumerate(read)}
        made = evaluated(build, cell.step, known, dict.fromkeys(("y0", "y1")[: 1 + cell.remembers]))
        done.append(_Step(at, known, made, h, kept[at]))
        h, c = made[0], made[1] if cell.remembers else c
    last = done[-1].made
    if cell.gradient:
        biases = () if weights.rb is None else (weights.rb,)
        build.state_gradient(
            first,
            (fed, weights.r, *biases, *begin),
            (*(step.made[0] for step in done), *last[1:]),
            lambda build, dys, wanted: _gradients(build, cell, weights, order, done, dys),
        )
    states = [step.made[0] for step in sorted(done, key=lambda step: step.at)]
    return states, last[0], last[1] if cell.remembers else None


class _Shares:
    """What the input and the state add to gates, or their sums; where a GRU resets the state, its new gate is last."""

    def __init__(self, build: Build, cell: Cell, weights: Weights, order: str, fed: Tensor, steps: int) -> None:
        self.build, self.cell, self.order = build, cell, order
        size, batch = weights.r.shape[1], fed.shape[0] // steps
        self.parts = [(weights.r, weights.rb)]
        if cell.passed:
            self.order = order[:-1]
            sizes = [size * len(self.order), size]
            biases = [None, None] if weights.rb is None else shapes.split(build, weights.rb, 0, sizes)
            self.parts = list(zip(shapes.split(build, weights.r, 0, sizes), biases))
        own = [fed] if cell.summed else _gates(build, fed, cell.gates, order)
        self.timed = [_apart(build, one, steps, (batch, one.shape[1])) for one in own]

    def of_step(self, at: int, h: Tensor) -> list[Tensor]:
        """Return what a step reads of them, in the cell's order, for a state."""
        build, cell, own = self.build, self.cell, [parts[at] for parts in self.timed]
        held = products.dense(build, h, *self.parts[0])
        if cell.summed:
            return _gates(build, build.pointwise("y0 = x0 + x1;", [*own, held])[0], cell.gates, self.order)
        by_gate = _gates(build, held, cell.gates[: len(self.order)], self.order)
        if cell.passed:
            (passed,) = evaluated(build, cell.passed, {"x0": own[0], "x1": by_gate[0], "x2": h}, {"y0": None})
            by_gate.append(products.dense(build, passed, *self.parts[1]))
        return [*own, *by_gate]


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
    build: Build, cell: Cell, weights: Weights, order: str, done: Sequence[_Step], dys: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Return the gradients of what all inputs add to gates, of r, its bias, and the states before the first step."""
    r, gates = weights.r, len(order)
    size, batch = r.shape[1], done[0].before.shape[0]
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
        own, *rest = (
            _joined_gates(build, found[i : i + gates], cell.gates, order) for i in ((0,) if cell.summed else (0, gates))
        )
        held = rest[0] if rest else own
        shares[step.at] = own, held
        back = DenseProblem("backward_data", batch, size, gates * size, dtype=r.dtype)
        (dh,) = build.add(back, held, r)
        if cell.reads_state:
            dh = _sum(build, [dh, found[-1]], dh)
        elif cell.remembers:
            dc = _kept(build, found[-1], step.factor)
        dh = _kept(build, dh, step.factor)
    rows = len(done) * batch
    dheld = _stacked(build, [held for _, held in shares], (rows, gates * size))
    dfed = dheld if cell.summed else _stacked(build, [own for own, _ in shares], (rows, gates * size))
    before = _stacked(build, [step.before for step in sorted(done, key=lambda step: step.at)], (rows, size))
    (dr,) = build.add(DenseProblem("backward_weight", rows, size, gates * size, dtype=r.dtype), before, dheld)
    biases: tuple[Tensor, ...] = ()
    if weights.rb is not None:
        biases = build.add(DenseProblem("backward_bias", rows, size, gates * size, dtype=r.dtype), dheld)
    assert dh is not None
    return dfed, dr, *biases, dh, *((dc,) if cell.remembers and dc is not None else ())


def _sum(build: Build, values: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the sum of one or two values, or zeros."""
    if len(values) == 1:
        return build.reshape(values[0], like.shape)
    if not values:
        return build.zeros(like)
    return build.pointwise("y0 = x0 + x1;", [build.reshape(value, like.shape) for value in values])[0]


def _joined_gates(build: Build, values: Sequence[Tensor], gates: str, order: str) -> Tensor:
    """Return the values of gates next to each other in another order."""
    named = dict(zip(gates, values))
    return shapes.joined(build, [named[gate] for gate in order], 1) if len(values) > 1 else values[0]


def _stacked(build: Build, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return values below each other as rows."""
    return build.reshape(_together(build, values, (len(values), *values[0].shape)), shape)


def _gates(build: Build, sums: Tensor, gates: str, order: str) -> list[Tensor]:
    """Return the columns of each gate, which stand in another order."""
    if len(order) == 1:
        return [sums]
    named = dict(zip(order, shapes.split(build, sums, 1, [sums.shape[1] // len(order)] * len(order))))
    return [named[gate] for gate in gates]


# whole layers


def layer(
    build: Build,
    cells: Sequence[Cell],
    x: Tensor,
    weights: Sequence[Weights],
    h: Tensor | None = None,
    c: Tensor | None = None,
    *,
    order: str = "",
    backward: bool = False,
) -> States:
    """Return what one layer computes, y as (steps, ways, batch, size).

    Parameters
    ----------
    cells : sequence of Cell
        Of each way.
    x : Tensor
        (steps, batch, inputs).
    weights : sequence of Weights
        Of each way.
    h, c : Tensor, optional
        The first states (ways, batch, size); zeros by default.
    order : str
        As of `one_way`.
    backward : bool
        Whether the first way begins with the last step; the second one does.
    """
    (steps, batch, _), size = x.shape, weights[0].r.shape[1]
    first = _first_states(build, h, c, len(cells), (batch, size))
    found = _ways(build, cells, x, weights, first, order, backward)
    shape = (steps, 1, batch, size)
    parts = [build.reshape(_together(build, states, (steps, batch, size)), shape) for states, _, _ in found]
    y = parts[0] if len(parts) == 1 else shapes.joined(build, parts, 1)
    return States(y, *_last_states(build, [ends for _, *ends in found]))


def layers(
    build: Build,
    cell: str,
    x: Tensor,
    weights: Sequence[Weights],
    h: Tensor | None = None,
    c: Tensor | None = None,
    *,
    ways: int = 1,
    rate: float = 0.0,
    keys: Sequence[Tensor] = (),
) -> States:
    """Return what layers on top of each other compute, in one direction or in both, y as (steps, batch, ways size).

    Parameters
    ----------
    cell : str
        Of `recurrent_cells.CELLS`.
    x : Tensor
        (steps, batch, inputs).
    weights : sequence of Weights
        Of each layer and way.
    h, c : Tensor, optional
        The first states (layers times ways, batch, size); zeros by default.
    ways : int
        1, or 2: backward as well.
    rate : float
        Of the dropout of what enters all layers but the first when training; each has one of the keys.
    """
    (steps, batch, _), size = x.shape, weights[0].r.shape[1]
    first = _first_states(build, h, c, len(weights), (batch, size))
    last: list[Sequence[Tensor | None]] = []
    for number in range(len(weights) // ways):
        if number and rate and build.training:
            x = dropout.dropout(build, x, keys[number - 1], rate)
        own = slice(number * ways, (number + 1) * ways)
        found = _ways(build, [find_cell(cell)] * ways, x, weights[own], first[own])
        parts = [_together(build, states, (steps, batch, size)) for states, _, _ in found]
        last += [ends for _, *ends in found]
        x = parts[0] if ways == 1 else shapes.joined(build, parts, 2)
    return States(x, *_last_states(build, last))


def _ways(
    build: Build,
    cells: Sequence[Cell],
    x: Tensor,
    weights: Sequence[Weights],
    first: Sequence[tuple[Tensor | None, Tensor | None]],
    order: str = "",
    backward: bool = False,
) -> list[tuple[list[Tensor], Tensor, Tensor | None]]:
    """Return what `one_way` does of each way."""
    return [
        one_way(build, cell, x, weights[way], *first[way], order=order, backward=backward or way == 1)
        for way, cell in enumerate(cells)
    ]


def _first_states(
    build: Build, h: Tensor | None, c: Tensor | None, count: int, shape: tuple[int, ...]
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return the states before the first step of each layer and way, as far as they are given."""
    none: list[Tensor | None] = [None] * count
    hs, cs = (none if one is None else [*_apart(build, one, count, shape)] for one in (h, c))
    return list(zip(hs, cs))


def _last_states(build: Build, last: Sequence[Sequence[Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Return the last states of all layers and ways, and what LSTMs remember."""
    hs, cs = ([one for one in column if one is not None] for column in zip(*last))
    shape = (len(hs), *hs[0].shape)
    return _together(build, hs, shape), _together(build, cs, shape) if cs else None


def continued(
    build: Build,
    cell: str,
    x: Tensor,
    parameters: Sequence[Tensor],
    keep: Tensor,
    first: Sequence[Tensor] = (),
    *,
    static: Tensor | None = None,
    order: str = "",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the states of all steps (steps, batch, size), the last one, and what an LSTM remembers in the end.

    Parameters
    ----------
    cell : str
        Of `recurrent_cells.CELLS`.
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
    order : str
        As of `one_way`.
    """
    (steps, batch), (w, b, *rest), fed = x.shape[:2], parameters, None
    if static is not None:
        fed = products.dense(build, build.reshape(static, (batch, static.size // max(1, batch))), rest.pop(0))
    r = rest[0]
    begin = [build.reshape(one, (batch, r.shape[1])) for one in first]
    x = build.reshape(x, (steps, batch, w.shape[1]))
    states, last, remembered = one_way(
        build, find_cell(cell), x, Weights(w, r, b), *begin, order=order, keep=keep, fed=fed
    )
    return _together(build, states, (len(states), *last.shape)), last, remembered


def read_out(build: Build, states: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return what a net shows of its states (steps, batch, size): tanh(w states + b)."""
    rows = build.reshape(states, (states.size // states.shape[-1], states.shape[-1]))
    return build.reshape(activated(build, products.dense(build, rows, w, b), "tanh"), states.shape)


def lstm_unit(build: Build, c: Tensor, gates: Tensor, keep: Tensor, order: str = "") -> tuple[Tensor, ...]:
    """Return what an LSTM remembers after a step, and its state.

    Parameters
    ----------
    c : Tensor
        What it remembered before (1, batch, size).
    gates : Tensor
        The sums of all gates (1, batch, gates times size).
    keep : Tensor
        Factors of c (1, batch), which have no gradient.
    order : str
        In which the gates stand, by their letters; by default i, f, g and o.
    """
    (_, batch, size), own = c.shape, find_cell("lstm").gates
    sums = _gates(build, build.reshape(gates, (batch, len(own) * size)), own, order or own)
    values = [*(build.reshape(one, c.shape) for one in sums), c, build.reshape(keep, (1, batch, 1))]
    step, gradient = recurrent_cells.lstm_step(SIGMOID, TANH, TANH)
    return with_own_gradient(build, step, gradient, values, 2, {})


def _apart(build: Build, values: Tensor, count: int, shape: Sequence[int]) -> list[Tensor]:
    """Return so many values of a shape that one holds one after the other."""
    flat = build.reshape(values, (count, math.prod(shape)))
    parts = [flat] if count == 1 else shapes.split(build, flat, 0, [1] * count)
    return [build.reshape(part, tuple(shape)) for part in parts]


def _together(build: Build, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return values one after the other in a shape."""
    return shapes.joined(build, [build.reshape(value, (1, *shape[1:])) for value in values], 0)
