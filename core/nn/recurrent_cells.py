"""Cells of recurrent layers with activations and limits of a model's choice, as formulas.

An activation is a function from a formula to a formula.
"""

from __future__ import annotations

from collections.abc import Callable

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
