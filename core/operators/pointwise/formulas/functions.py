"""Functions of each element with their gradients, as assignments over named values.

A gradient here multiplies dy from the left and is 0 where x is not a number; those of `activation` are factors on dy.
The names: x and y for the function's argument and value, dx and dy for their gradients, and the scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Function:
    """One function.

    Attributes
    ----------
    forward : str
        Assigns y.
    backward : str
        Assigns dx; empty if there is no gradient.
    keeps_x : bool
        Whether the gradient needs x itself. False although `backward` reads x means that y in its place gives the same
        (both have the same sign).
    scalars : mapping of str to float
        Values of the scalars that both texts name, where they are known.
    """

    forward: str
    backward: str
    keeps_x: bool = False
    scalars: Mapping[str, float] = field(default_factory=dict)


def rectifier(slope: float) -> Function:
    """Return ``max(x, 0) + slope min(x, 0)``; the gradient at 0 is the slope."""
    return Function(
        "y = x > 0 ? x : slope * x;", "dx = dy * (x > 0 ? 1 : x <= 0 ? slope : 0);", scalars={"slope": slope}
    )


def exponential_linear(alpha: float) -> Function:
    """Return x above 0 and ``alpha (exp(x) - 1)`` elsewhere."""
    return Function(
        "y = x > 0 ? x : alpha * expm1(x);",
        "dx = dy * (x > 0 ? 1 : x <= 0 ? alpha + y : 0);",
        scalars={"alpha": alpha},
    )


def sigmoid() -> Function:
    """Return ``1 / (1 + exp(-x))``."""
    return Function("y = 1 / (1 + exp(-x));", "dx = dy * y * (1 - y);")


def tanh() -> Function:
    """Return the hyperbolic tangent."""
    return Function("y = tanh(x);", "dx = dy * (1 - y * y);")


def absolute() -> Function:
    """Return ``|x|``; the gradient at 0 is 0."""
    return Function("y = fabs(x);", "dx = dy * (x > 0 ? 1 : x < 0 ? -1 : 0);", keeps_x=True)


def power(exponent: float, scale: float, shift: float) -> Function:
    """Return ``(shift + scale x) ^ exponent``; the gradient is the formula's everywhere, also where the base is 0."""
    base = "(shift + scale * x)"
    scalars = {"shift": shift, "scale": scale, "power": exponent}
    if exponent == 1:
        return Function(f"y = {base};", "dx = dy * scale;", False, scalars)
    if exponent == 2:
        return Function(f"y = {base} * {base};", f"dx = dy * 2 * scale * {base};", True, scalars)
    if exponent * scale == 0:
        level = 1.0 if exponent == 0 else shift**exponent
        return Function("y = 0 * x + level;", "dx = 0 * dy;", False, {"level": level})
    return Function(f"y = pow({base}, power);", f"dx = dy * power * scale * pow({base}, power - 1);", True, scalars)


def exponential(base: float | None, scale: float, shift: float) -> Function:
    """Return ``base ^ (shift + scale x)``; None stands for e."""
    logarithm = _logarithm(base)
    scalars = {"rate": logarithm * scale, "factor": math.exp(logarithm * shift)}
    return Function("y = factor * exp(rate * x);", "dx = dy * rate * y;", scalars=scalars)


def logarithm(base: float | None, scale: float, shift: float) -> Function:
    """Return the logarithm of ``shift + scale x``; None stands for base e."""
    scalars = {"factor": 1 / _logarithm(base), "shift": shift, "scale": scale}
    return Function(
        "y = factor * log(shift + scale * x);", "dx = dy * factor * scale / (shift + scale * x);", True, scalars
    )


def _logarithm(base: float | None) -> float:
    return 1.0 if base is None else math.log(base)


def softplus() -> Function:
    """Return ``log(1 + exp(x))``, without overflow."""
    return Function("y = fmax(x, 0) + log1p(exp(-fabs(x)));", "dx = dy / (1 + exp(-x));", keeps_x=True)


def swish(beta: float) -> Function:
    """Return ``x / (1 + exp(-beta x))`` (Ramachandran et al. 2017)."""
    return Function(
        "y = x / (1 + exp(-beta * x));",
        "real s = 1 / (1 + exp(-beta * x)); dx = dy * (s + beta * x * s * (1 - s));",
        True,
        {"beta": beta},
    )


def clip(low: float, high: float) -> Function:
    """Return x, at least `low` and at most `high`; the gradient at both is 1."""
    return Function(
        "y = x < low ? low : x > high ? high : x;",
        "dx = dy * (x >= low && x <= high);",
        True,
        {"low": low, "high": high},
    )


def threshold(level: float) -> Function:
    """Return 1 above a level and 0 elsewhere; it has no gradient."""
    return Function("y = x > threshold ? 1 : 0;", "", scalars={"threshold": level})


def learned_rectifier() -> Function:
    """Return a rectifier whose slopes are an input, with the gradient dslope.

    The method: He et al. 2015, "Delving deep into rectifiers".
    """
    return Function(
        "y = x > 0 ? x : slope * x;",
        "dx = dy * (x > 0 ? 1 : x <= 0 ? slope : 0); dslope = x <= 0 ? dy * x : 0;",
        keeps_x=True,
    )


def affine(bias: bool) -> Function:
    """Return ``x g``, or ``x g + b``, with the gradients dg and db."""
    return Function(f"y = x * g{' + b' * bias};", "dg = dy * x; db = dy; dx = dy * g;", keeps_x=True)


def shifted() -> Function:
    """Return ``x + b``, with the gradient db."""
    return Function("y = x + b;", "db = dy; dx = dy;")


@dataclass(frozen=True)
class Combination:
    """A function of several values x0, x1, ...

    Attributes
    ----------
    forward : str
        Assigns y.
    gradients : tuple of str
        The gradient of each value, as an expression.
    before : str
        Assignments that the gradients need.
    """

    forward: str
    gradients: tuple[str, ...]
    before: str = ""

    def backward(self, wanted: Sequence[int]) -> str:
        """Return the assignments to dx0, dx1, ... of the wanted values."""
        return self.before + " ".join(f"dx{i} = {self.gradients[i]};" for i in wanted)


def weighted_sum(factors: Sequence[float]) -> Combination:
    """Return a sum with constant factors; a factor of 1 is no multiplication."""
    terms = [f"{factor!r} * {{}}" if factor != 1 else "{}" for factor in factors]
    text = " + ".join(term.format(f"x{i}") for i, term in enumerate(terms))
    return Combination(f"y = {text};", tuple(term.format("dy") for term in terms))


def product(count: int) -> Combination:
    """Return a product; each gradient is dy times the other values, right for values of 0 too."""
    names = [f"x{i}" for i in range(count)]
    gradients = (" * ".join(["dy", *names[:i], *names[i + 1 :]]) for i in range(count))
    return Combination("y = " + " * ".join(names) + ";", tuple(gradients))


def maximum(count: int) -> Combination:
    """Return the greatest value; of equal x0 and x1 the gradient goes to x1, to a later one only if it is greater."""
    winner = "real top1 = x0 > x1 ? x0 : x1; real who1 = x0 > x1 ? 0 : 1;"
    for i in range(2, count):
        greater = f"x{i} > top{i - 1}"
        winner += f"real top{i} = {greater} ? x{i} : top{i - 1}; real who{i} = {greater} ? {i} : who{i - 1};"
    gradients = tuple(f"who{count - 1} == {i} ? dy : 0" for i in range(count))
    return Combination(f"{winner}y = top{count - 1};", gradients, winner)
