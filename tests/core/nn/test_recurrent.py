"""Recurrent layers against their definitions in float64: results and gradients, in each framework's conventions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import ProblemError
from clgraft.core.nn import recurrent, recurrent_cells
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import find
from clgraft.core.nn.recurrent_cells import SIGMOID, TANH, Cell
from tests.core.nn.functions import built, expect_like

STEPS, BATCH, INPUTS, SIZE = 4, 3, 5, 7


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softsign(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.abs(x))


def defined(
    kind: str,
    order: str,
    reset_after: bool = True,
    backward: bool = False,
    f: Callable = sigmoid,
    g: Callable = np.tanh,
) -> Callable[..., np.ndarray]:
    """Return the states of all steps as NumPy computes them, of x, w, r, wb, rb and, for some kinds, h, c and p."""

    def states(x, w, r, wb, rb, h=0.0, c=0.0, p=None):
        def of(gate: str, values: np.ndarray) -> np.ndarray:
            at = order.index(gate) * SIZE
            return values[..., at : at + SIZE]

        h, c = np.zeros((BATCH, SIZE)) + h, np.zeros((BATCH, SIZE)) + c
        i, forget, o = (0, 0, 0) if p is None else p.reshape(3, SIZE)
        done = {}
        for step in reversed(range(STEPS)) if backward else range(STEPS):
            own, held = x[step] @ w.T + wb, h @ r.T + rb
            sums = {gate: of(gate, own) + of(gate, held) for gate in order}
            if kind == "lstm":
                new_c = f(sums["f"] + forget * c) * c + f(sums["i"] + i * c) * g(sums["g"])
                h, c = f(sums["o"] + o * new_c) * np.tanh(new_c), new_c
            elif kind == "gru":
                reset, update = f(sums["r"]), f(sums["z"])
                if reset_after:
                    new = g(of("n", own) + reset * of("n", held))
                else:
                    new = g(of("n", own) + of("n", (reset * h) @ r.T + rb))
                h = (1 - update) * new + update * h
            else:
                h = g(sums["h"])
            done[step] = h
        return np.stack([done[step] for step in range(STEPS)])

    return states


def arrays(gates: int, *more: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = {"x": (STEPS, BATCH, INPUTS), "w": (gates * SIZE, INPUTS), "r": (gates * SIZE, SIZE)}
    shapes |= {"wb": (gates * SIZE,), "rb": (gates * SIZE,)}
    shapes |= {name: (3 * SIZE,) if name == "p" else (BATCH, SIZE) for name in more}
    return {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def one_way(cell: Cell, order: str, backward: bool = False) -> Callable[..., Tensor]:
    def function(build: Build, x: Tensor, w: Tensor, r: Tensor, wb: Tensor, rb: Tensor, *more: Tensor) -> Tensor:
        weights = recurrent.Weights(w, r, wb, rb)
        if cell.peepholes:
            (p,) = recurrent.unstacked(
                build,
                *(build.reshape(one, (1, *one.shape)) for one in (w, r)),
                None,
                build.reshape(more[2], (1, 21)),
                "ifo",
            )
            weights = weights._replace(p=p.p)
        states, *_ = recurrent.one_way(build, cell, x, weights, *more[:2], order=order, backward=backward)
        return recurrent._together(build, states, (STEPS, BATCH, SIZE))

    return function


FRAMEWORKS = {
    "lstm of MXNet and PyTorch": ("lstm", "ifgo", {}),
    "lstm of ONNX": ("lstm", "iofg", {}),
    "lstm of Caffe": ("lstm", "ifog", {}),
    "gru of MXNet and PyTorch": ("gru", "rzn", {}),
    "gru of ONNX": ("gru", "zrn", {"reset_after": False}),
    "gru of ONNX, reset after": ("gru", "zrn", {}),
    "vanilla": ("tanh", "h", {}),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_matches_float64(name: str, backward: bool) -> None:
    kind, order, given = FRAMEWORKS[name]
    cell = recurrent_cells.gru(SIGMOID, TANH, **given) if given else recurrent_cells.find_cell(kind)
    more = {"lstm": ("h", "c"), "gru": ("h",)}.get(kind, ())
    expect_like(
        one_way(cell, order, backward), defined(kind, order, backward=backward, **given), arrays(len(order), *more)
    )


@pytest.mark.parametrize("peepholes", [False, True])
def test_functions_and_peepholes_of_an_lstm(peepholes: bool) -> None:
    """Without a slope that is stated, or with peepholes, the gradient is derived."""
    functions = (find("softsign"), TANH, TANH) if peepholes else (SIGMOID, find("softsign"), TANH)
    cell = recurrent_cells.lstm(*functions, peepholes=peepholes)
    assert bool(cell.gradient) is not peepholes
    own = {"f": softsign} if peepholes else {"g": softsign}
    expect_like(
        one_way(cell, "iofg"), defined("lstm", "iofg", **own), arrays(4, "h", "c", *(("p",) if peepholes else ()))
    )


def test_values_between_limits() -> None:
    cell = recurrent_cells.vanilla(recurrent_cells.limited(TANH, 0.75))
    assert not cell.gradient
    expect_like(one_way(cell, "h"), defined("rnn", "h", g=lambda x: np.tanh(np.clip(x, -0.75, 0.75))), arrays(1))


def test_large_sums_have_finite_gradients() -> None:
    """Of a sigmoid far below 0, too."""
    given = arrays(4, "h", "c")
    given["wb"] = np.where(np.arange(4 * SIZE) % 2, np.float32(300), np.float32(-300)).astype(np.float32)
    given["dy0"] = np.ones((STEPS, BATCH, SIZE), np.float32)
    found = built(one_way(recurrent_cells.find_cell("lstm"), "ifgo"), given)
    got = core.context().compile(found.graph).run(found.given(given))
    assert all(np.isfinite(value).all() for value in got.values())


def test_an_unknown_cell() -> None:
    with pytest.raises(ProblemError, match=r"\[recurrent\] got cell 'elman'"):
        recurrent_cells.find_cell("elman")
