"""Recurrent layers whose cells have activations of a model's choice: vanilla cells, GRU and LSTM with peepholes.

An activation is a function from a formula to a formula. One product computes the gates' share of all inputs, and one in
each step that of the state before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from clgraft.core.nn import products, shapes
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import assigned

Activation = Callable[[str], str]

# what the input and the state before add to a gate, and the bias of each
SHARES = "x0 + x1 + x2 + x3"
# a GRU (Cho et al. 2014): the state that the reset gate x0 lets through
GRU_HELD = "x0 * x1"
# the same shares, where the reset gate x4 multiplies that of the state with its bias
GRU_SHARES_RESET_AFTER = "x0 + x2 + x4 * (x1 + x3)"
# the state, of the update gate, the new state and the state before
GRU_STATE = "(1 - x0) * x1 + x0 * x2"


def within(text: str, limit: float) -> str:
    """Return a value between -limit and limit."""
    return f"clamp({text}, ({-limit!r}), {limit!r})"


def lstm_memory(gate: Activation, new: Activation) -> str:
    """Return what an LSTM (Hochreiter and Schmidhuber 1997) remembers.

    It reads the shares of input gate, forget gate and new memory, the memory before, and what that adds to the forget
    gate and to the input gate by peepholes.
    """
    return f"({gate('x1 + x4 * x3')}) * x3 + ({gate('x0 + x5 * x3')}) * ({new('x2')})"


def lstm_state(gate: Activation, out: Activation) -> str:
    """Return an LSTM's state, of the share of the output gate, the memory, and its peephole to that gate."""
    return f"({gate('x0 + x2 * x1')}) * ({out('x1')})"


class Parameters(NamedTuple):
    """The parameters of all ways, and their first states.

    Attributes
    ----------
    w, r : Tensor
        (ways, gates times size, inputs) and (ways, gates times size, size). The gates are those of `KINDS`.
    b : Tensor or None
        (ways, twice gates times size): biases of the input's share, then of the state's.
    h, c : Tensor or None
        (ways, batch, size); zeros if None.
    p : Tensor or None
        (ways, 3 times size): peepholes to the input, output and forget gate.
    """

    w: Tensor
    r: Tensor
    b: Tensor | None = None
    h: Tensor | None = None
    c: Tensor | None = None
    p: Tensor | None = None


class _Way(NamedTuple):
    """What the cell of one direction is made of: its activations, both biases, the weights of the state, peepholes."""

    functions: Sequence[Activation]
    biases: tuple[Tensor, Tensor]
    r: Tensor
    p: Tensor | None
    size: int


# the input's share, the state and the memory -> the next state and memory
_Step = Callable[[Tensor, Tensor, Tensor], "tuple[Tensor, Tensor]"]


def layer(
    build: Build,
    kind: str,
    x: Tensor,
    parameters: Parameters,
    functions: Sequence[Sequence[Activation]],
    *,
    backward: bool = False,
    reset_after: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the states of all steps (steps, ways, batch, size), the last ones (ways, batch, size), and LSTMs' memory.

    Parameters
    ----------
    kind : str
        Of `KINDS`.
    x : Tensor
        (steps, batch, inputs).
    parameters : Parameters
    functions : sequence of sequence of callable
        For each way the activations of its cells.
    backward : bool
        Whether the first way begins with the last step; the second one does.
    reset_after : bool
        Whether the reset gate of a GRU multiplies what the weights make of the state, and not the state.
    """
    ways, size = parameters.w.shape[0], parameters.r.shape[-1]
    found = []
    for way in range(ways):
        parts = (None if one is None else _part(build, one, way) for one in parameters)
        own = Parameters(*parts)  # type: ignore[arg-type]
        found.append(_one_way(build, kind, x, own, functions[way], backward or way == 1, reset_after))
    steps, batch, _ = x.shape
    y = _joined(build, [build.reshape(states, (steps, 1, batch, size)) for states, _, _ in found], 1)
    h, *c = (
        _joined(build, [build.reshape(one[i], (1, batch, size)) for one in found], 0)
        for i in ((1, 2) if kind == "lstm" else (1,))
    )
    return y, h, c[0] if c else None


def _one_way(
    build: Build,
    kind: str,
    x: Tensor,
    own: Parameters,
    functions: Sequence[Activation],
    backward: bool,
    reset_after: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states of all steps (steps, batch, size), the last one, and what is remembered in the end."""
    (steps, batch, inputs), (columns, size) = x.shape, own.r.shape
    fed = build.reshape(_product(build, build.reshape(x, (steps * batch, inputs)), own.w), (steps, batch, columns))
    if own.b is None:
        wb = rb = build.filled((columns,), 0.0, x.dtype)
    else:
        wb, rb = (_cut(build, own.b, (i * columns,), (columns,)) for i in range(2))
    step = KINDS[kind](build, _Way(functions, (wb, rb), own.r, own.p, size), reset_after)
    state, memory = (build.filled((batch, size), 0.0, x.dtype) if one is None else one for one in (own.h, own.c))
    states = []
    for turn in range(steps):
        at = steps - 1 - turn if backward else turn
        now = build.reshape(_cut(build, fed, (at, 0, 0), (1, batch, columns)), (batch, columns))
        state, memory = step(now, state, memory)
        states.append(build.reshape(state, (1, batch, size)))
    return _joined(build, states[::-1] if backward else states, 0), state, memory


def _rnn(build: Build, way: _Way, reset_after: bool) -> _Step:
    (f,) = way.functions

    def step(now: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return _made(build, f(SHARES), now, _product(build, state, way.r), *way.biases), memory

    return step


def _gru(build: Build, way: _Way, reset_after: bool) -> _Step:
    """Return the step of a GRU: update, reset and new gate."""
    (f, g), size = way.functions, way.size
    rows = [_cut(build, way.r, (i * size, 0), (size, size)) for i in range(3)]
    biased = [[_gate(build, b, i, size) for b in way.biases] for i in range(3)]

    def step(now: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        z, reset = (
            _made(build, f(SHARES), _gate(build, now, i, size), _product(build, state, rows[i]), *biased[i])
            for i in range(2)
        )
        own, (wb, rb) = _gate(build, now, 2, size), biased[2]
        if reset_after:
            text, values = GRU_SHARES_RESET_AFTER, [own, _product(build, state, rows[2]), wb, rb, reset]
        else:
            held = _made(build, GRU_HELD, reset, state)
            text, values = SHARES, [own, _product(build, held, rows[2]), wb, rb]
        return _made(build, GRU_STATE, z, _made(build, g(text), *values), state), memory

    return step


def _lstm(build: Build, way: _Way, reset_after: bool) -> _Step:
    """Return the step of an LSTM: input, output, forget gate and new memory."""
    (f, g, h), size = way.functions, way.size
    if way.p is None:
        peeps = [build.filled((size,), 0.0, way.r.dtype)] * 3
    else:
        peeps = [_gate(build, way.p, i, size) for i in range(3)]

    def step(now: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        sums = _made(build, SHARES, now, _product(build, state, way.r), *way.biases)
        i, o, forget, c = (_gate(build, sums, number, size) for number in range(4))
        new = _made(build, lstm_memory(f, g), i, forget, c, memory, peeps[2], peeps[0])
        return _made(build, lstm_state(f, h), o, new, peeps[1]), new

    return step


# the weights have as many times as many rows as the state has elements as there are gates: 1, 3 and 4
KINDS: dict[str, Callable[[Build, _Way, bool], _Step]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


def _made(build: Build, text: str, *values: Tensor) -> Tensor:
    return build.pointwise(assigned("y0", text), values)[0]


def _product(build: Build, x: Tensor, w: Tensor) -> Tensor:
    """Return x w^T of rows x."""
    return products.matmul(build, x, w, transposed_b=True)


def _gate(build: Build, value: Tensor, number: int, size: int) -> Tensor:
    """Return one gate's columns, or its share of a bias."""
    before = value.shape[:-1]
    return _cut(build, value, (*(0 for _ in before), number * size), (*before, size))


def _part(build: Build, value: Tensor, way: int) -> Tensor:
    """Return a way's share of a parameter."""
    shape = value.shape[1:]
    return build.reshape(_cut(build, value, (way, *(0 for _ in shape)), (1, *shape)), shape)


def _cut(build: Build, x: Tensor, begin: Sequence[int], shape: Sequence[int]) -> Tensor:
    return x if x.shape == tuple(shape) else shapes.cut(build, x, shape, begin)


def _joined(build: Build, values: Sequence[Tensor], axis: int) -> Tensor:
    return values[0] if len(values) == 1 else shapes.joined(build, values, axis)
