"""Cells of recurrent layers: vanilla cells, LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014).

A cell is the text of one step. Its activations are functions of `element_functions`; where each of them states its
slope, the cell states its gradient, and otherwise a graph derives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clgraft.core.errors import ProblemError
from clgraft.core.nn.element_functions import Function, find
from clgraft.core.nn.formulas import number, renamed

PEEPHOLES = "ifo"  # gates of an LSTM that may have them, in the order in which a step reads them


@dataclass(frozen=True)
class Cell:
    """What a step computes.

    Attributes
    ----------
    gates : str
        A letter for each gate. The weights have so many times as many rows as the state has elements.
    step : str
        Assigns the state y0, and y1, what an LSTM remembers, from the gates' share of the input x0, x1, ..., that of
        the state before, which follows, what was remembered, or a GRU's state before, and peepholes.
    summed : bool
        Whether x0, x1, ... are the sums of both shares, and the state's do not follow.
    gradient : str
        Assigns dx0, ... from these, the gradients dy0 and dy1, and y0; empty if it has to be derived.
    reads_state : bool
        Whether the step reads the state before itself.
    remembers : bool
        Whether there is a y1.
    passed : str
        Assigns what the last gate's weights multiply in place of the state before, y0, from the reset gate's shares x0
        and x1 and that state, x2; empty if all gates multiply the state.
    peepholes : str
        The gates that also read what is remembered, times a weight for each element.
    """

    gates: str
    step: str
    gradient: str
    summed: bool = False
    reads_state: bool = False
    remembers: bool = False
    passed: str = ""
    peepholes: str = ""


def limited(function: Function, limit: float) -> Function:
    """Return a function of a value that is first brought between -limit and limit."""
    bounded = f"clamp(x, {number(-limit)}, {number(limit)})"
    return replace(function, value=renamed(function.value, {"x": bounded}), slope="")


def vanilla(f: Function) -> Cell:
    """Return the cell of one gate: ``f(w x + r h)``."""
    slope = _slope(f, "x0", "y0")
    return Cell("h", f"y0 = {_value(f, 'x0')};", slope and f"dx0 = dy0 * {slope};", summed=True)


def lstm(f: Function, g: Function, h: Function, *, peepholes: bool = False) -> Cell:
    """Return an LSTM: f is the function of the input, forget and output gate, g of the new one, h of what it remembers.

    Its gates are i, f, g (new) and o, and peepholes, if it has them, those to i, f and o.
    """
    functions, sums = (f, g, h), ["x0", "x1", "x2", "x3"]
    if peepholes:
        sums = ["x0 + x5 * x4", "x1 + x6 * x4", "x2", "x3 + x7 * c"]
    values = _lstm_values(functions, sums, "x4")
    gradient = "" if peepholes else _lstm_gradients(functions, sums, "x4", memory="dy1", state="dy0")
    if gradient:
        gradient = f"{values}{gradient}dx0 = di; dx1 = df; dx2 = dg; dx3 = da; dx4 = dc * f;"
    holes = PEEPHOLES if peepholes else ""
    return Cell("ifgo", f"{values}y1 = c; y0 = o * t;", gradient, summed=True, remembers=True, peepholes=holes)


def lstm_step(f: Function, g: Function, h: Function) -> tuple[str, str]:
    """Return the text of an LSTM's step, and that of its gradient.

    The step assigns what is remembered, y0, and the state, y1, from the sums of the gates i, f, g and o, what was
    remembered, x4, and a factor of that, x5, which gets no gradient.
    """
    functions, sums, memory = (f, g, h), ["x0", "x1", "x2", "x3"], "(x5 * x4)"
    values = _lstm_values(functions, sums, memory)
    gradient = _lstm_gradients(functions, sums, memory, memory="dy0", state="dy1")
    given = "dx0 = di; dx1 = df; dx2 = dg; dx3 = da; dx4 = dc * x5 * f;"
    return f"{values}y0 = c; y1 = o * t;", f"{values}{gradient}{given}"


def gru(f: Function, g: Function, *, reset_after: bool = True) -> Cell:
    """Return a GRU: f is the function of the reset and update gate, g of the new one; its gates are r, z and n.

    Parameters
    ----------
    reset_after : bool
        Whether the reset gate multiplies what the weights make of the state, with the bias, and not the state.
    """
    update, state = f"real z = {_value(f, 'x1 + x4')}; ", "y0 = (1 - z) * n + z * x6;"
    if not reset_after:
        passed = f"real r = {_value(f, 'x0 + x1')}; y0 = r * x2;"
        return Cell("rzn", f"{update}real n = {_value(g, 'x2 + x5')}; {state}", "", reads_state=True, passed=passed)
    new = "x2 + r * x5"
    values = f"real r = {_value(f, 'x0 + x3')}; {update}real n = {_value(g, new)}; "
    slopes = [_slope(f, "x0 + x3", "r"), _slope(f, "x1 + x4", "z"), _slope(g, new, "n")]
    gradient = (
        f"{values}real dn = dy0 * (1 - z) * {slopes[2]}; real dz = dy0 * (x6 - n) * {slopes[1]}; "
        f"real dr = dn * x5 * {slopes[0]}; "
        "dx0 = dr; dx1 = dz; dx2 = dn; dx3 = dr; dx4 = dz; dx5 = dn * r; dx6 = dy0 * z;"
    )
    return Cell("rzn", f"{values}{state}", gradient if all(slopes) else "", reads_state=True)


def _lstm_values(functions: Sequence[Function], sums: Sequence[str], remembered: str) -> str:
    """Return statements that declare an LSTM's gates i, f, g and o, what it remembers, c, and a function of that, t."""
    f, g, h = functions
    return (
        f"real i = {_value(f, sums[0])}; real f = {_value(f, sums[1])}; real g = {_value(g, sums[2])}; "
        f"real c = f * {remembered} + i * g; real o = {_value(f, sums[3])}; real t = {_value(h, 'c')}; "
    )


def _lstm_gradients(
    functions: Sequence[Function], sums: Sequence[str], remembered: str, *, memory: str, state: str
) -> str:
    """Return statements that declare the gradients dc, di, df, dg and da (of o) from those of c and of the state."""
    f, g, h = functions
    new = _slope(g, sums[2], "g")
    i, forget, o = (_slope(f, sums[place], gate) for place, gate in ((0, "i"), (1, "f"), (3, "o")))
    out = _slope(h, "c", "t")
    if not all((i, forget, new, o, out)):
        return ""
    return (
        f"real dc = {memory} + {state} * o * {out}; real di = dc * g * {i}; real df = dc * {remembered} * {forget}; "
        f"real dg = dc * i * {new}; real da = {state} * t * {o}; "
    )


def _value(function: Function, x: str) -> str:
    """Return a function's value at a formula."""
    return renamed(function.value, {"x": f"({x})", **_numbers(function)})


def _slope(function: Function, x: str, y: str) -> str:
    """Return a function's slope at a formula where its value is y; empty if it is not known, or no expression."""
    if not function.slope or ";" in function.slope:
        return ""
    return f"({renamed(function.slope, {'x': f'({x})', 'y': y, **_numbers(function)})})"


def _numbers(function: Function) -> dict[str, str]:
    return {name: f"({number(value)})" for name, value in function.scalars.items()}


SIGMOID, TANH = find("sigmoid"), find("tanh")
CELLS: Mapping[str, Cell] = {
    "relu": vanilla(find("relu")),
    "tanh": vanilla(TANH),
    "lstm": lstm(SIGMOID, TANH, TANH),
    "gru": gru(SIGMOID, TANH),
}


def find_cell(name: str) -> Cell:
    """Return a cell with the usual activations by its name.

    Raises
    ------
    ProblemError
        If there is none.
    """
    if name not in CELLS:
        raise ProblemError(f"[recurrent] got cell {name!r}, expected one of {tuple(CELLS)}")
    return CELLS[name]
