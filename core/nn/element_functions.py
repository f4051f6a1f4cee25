"""Functions of one element: each formula once, the conventions in which frameworks differ next to each other.

A value is a formula of ``x`` and of named scalars (see `formulas`); its slope, the derivative, is one of ``x``, of the
value ``y`` and of the scalars. How a gradient takes dy is a convention of its own:

``FACTOR``
    ``dy * (slope)``: NaN is what the slope says. MXNet's way, and that of every function that states no other.
``LEFT``
    The factors of the slope are multiplied to dy one by one, from the left, and the gradient at NaN is 0. Caffe's way.
``SELECT``
    dy is chosen, not multiplied: an infinite dy where the slope is 0 is 0, not NaN. PyTorch's way.
``RESULT``
    As SELECT, of y alone: for gradients of functions that have overwritten x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from clgraft.core.errors import ProblemError, hint
from clgraft.core.nn.formulas import names_in, split
from clgraft.core.operators.batchnorm import following

FACTOR, LEFT, SELECT, RESULT = WAYS = ("factor", "left", "select", "result")

SELU_ALPHA, SELU_SCALE = (
    1.6732632423543772,
    1.0507009873554805,
)  # Klambauer et al. 2017, "Self-normalizing neural networks"


@dataclass(frozen=True)
class Function:
    """One function.

    Attributes
    ----------
    value : str
    slope : str
        Empty where no adapter has a gradient of its own: a graph's gradients are then derived from the value.
    scalars : mapping of str to float
        Run-time parameters and their usual values.
    ways : mapping of str to str
        Gradients, as formulas of dy, that are not ``dy * (slope)``.
    y_for_x : tuple of str
        The ways in which y may stand for x, as both have the same sign: in place, x need not be kept.
    note : str
        Conventions where they could be otherwise.
    """

    value: str
    slope: str = ""
    scalars: Mapping[str, float] = field(default_factory=dict)
    ways: Mapping[str, str] = field(default_factory=dict)
    y_for_x: tuple[str, ...] = ()
    note: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """Which of ``x`` and ``y`` the slope reads, in the order of the inputs of `activations.backward` after dy."""
        return tuple(name for name in ("x", "y") if name in names_in(self.slope))

    def gradient(self, way: str = FACTOR) -> str:
        """Return the formula of the gradient; it reads ``dy``, ``x``, ``y`` and scalars."""
        if way in self.ways:
            return self.ways[way]
        if not self.slope or (way == RESULT and "x" in self.reads):
            raise ProblemError(f"[activation] got no gradient of {self.value!r}, expected one for {way!r}")
        before, slope = split(self.slope)
        return f"{before}dy * ({slope})"

    def keeps_x(self, way: str) -> bool:
        """Return whether the gradient needs x itself, also where y has overwritten it."""
        return way not in self.y_for_x and "x" in names_in(self.gradient(way))

    def given(self, **scalars: float) -> Function:
        """Return the function with other values of its scalars."""
        unknown = set(scalars) - set(self.scalars)
        if unknown:
            raise ProblemError(f"[activation] got scalars {sorted(unknown)}, expected some of {sorted(self.scalars)}")
        return replace(self, scalars={**self.scalars, **scalars})


def _of_norms(name: str, scalars: Mapping[str, float] | None = None, **more: object) -> Function:
    """Return a function that a batch norm computes too, with the norm's formulas."""
    found = following.ACTIVATIONS[name]
    return Function(found.value, found.slope, scalars or {}, **more)  # type: ignore[arg-type]


SIGMOID = "1 / (1 + exp(-x))"
SOFTPLUS = "fmax(x, 0) + log1p(exp(-fabs(x)))"
SIGN = "x > 0 ? 1 : x < 0 ? -1 : 0"
SIXTH = "x <= -3 ? 0 : x >= 3 ? 1 : x / 6 + 0.5"
TANH_GELU = "M_SQRT2 * M_2_SQRTPI * 0.5 * (x + 0.044715 * x * x * x)"
TANH_GELU_SLOPE = "M_SQRT2 * M_2_SQRTPI * 0.5 * (1 + 3 * 0.044715 * x * x)"

ACTIVATIONS: dict[str, Function] = {
    "identity": Function("x", "1"),
    # rectifiers
    "relu": _of_norms("relu", note="max(x, 0): NaN becomes 0; the gradient at 0 is 0"),
    "relu_keep_nan": _of_norms("relu_keep_nan", note="as relu, but NaN stays NaN, in the gradient by FACTOR too"),
    "leaky_relu": _of_norms(
        "leaky_relu",
        {"slope": 0.25},
        ways={LEFT: f"dy * ({following.ACTIVATIONS['leaky_relu_stop_nan'].slope})", SELECT: "x > 0 ? dy : slope * dy"},
        y_for_x=(FACTOR, LEFT, SELECT),
        note="x, and slope x below 0; NaN stays; the gradient at 0 is slope, by FACTOR that of NaN 1",
    ),
    "leaky_relu_keep_zero": Function(
        "x < 0 ? slope * x : x", "", {"slope": 0.01}, note="ONNX's: as leaky_relu, but 0 is not multiplied by the slope"
    ),
    "thresholded_relu": Function(
        "x > level ? x : 0",
        "x > level ? 1 : 0",
        {"level": 0.0},
        {SELECT: "x <= level ? 0 : dy"},
        y_for_x=(FACTOR, SELECT),
        note="NaN becomes 0; the gradient at the level is 0, by SELECT that of NaN is dy",
    ),
    "shrink": Function("x < -level ? x + bias : x > level ? x - bias : 0", "", {"level": 0.5, "bias": 0.0}),
    "threshold": Function("x > threshold ? 1 : 0", "0", {"threshold": 0.0}, note="NaN becomes 0"),
    # limits
    "clip": _of_norms(
        "clip",
        {"low": 0.0, "high": 6.0},
        ways={LEFT: "dy * (x >= low && x <= high)", SELECT: "x <= low || x >= high ? 0 : dy"},
        note="NaN stays; the gradient at both bounds is 1, by SELECT 0; by FACTOR that of NaN is 1",
    ),
    "at_least": Function(
        "x >= level || isnan(x) ? x : level",
        "x >= level ? 1 : 0",
        {"level": 0.0},
        note="the gradient at the level is 1",
    ),
    "at_most": Function(
        "x <= level || isnan(x) ? x : level",
        "x <= level ? 1 : 0",
        {"level": 0.0},
        note="the gradient at the level is 1",
    ),
    # exponential units
    "elu": Function(
        "x > 0 ? x : alpha * expm1(x)",
        "x <= 0 ? y + alpha : 1",
        {"alpha": 1.0},
        {
            LEFT: "dy * (x > 0 ? 1 : x <= 0 ? y + alpha : 0)",
            SELECT: "x > 0 ? dy : dy * (alpha * exp(x))",
            RESULT: "y > 0 ? dy : dy * (y + alpha)",
        },
        y_for_x=(FACTOR, LEFT),
        note="the gradient at 0 is alpha, by FACTOR that of NaN 1; y stands for x if alpha is not negative",
    ),
    "elu_keep_zero": Function(
        "x >= 0 ? x : alpha * expm1(x)",
        "",
        {"alpha": 1.0},
        note="ONNX's: as elu, but -0 stays -0 whatever expm1 makes of it",
    ),
    "stretched_elu": Function(
        "x > 0 ? scale * x : least * expm1(stretch * x)",
        "",
        {"scale": 1.0, "least": 1.0, "stretch": 1.0},
        {
            SELECT: "x > 0 ? scale * dy : stretch * dy * (least * exp(stretch * x))",
            RESULT: "y > 0 ? scale * dy : stretch * dy * (y + least)",
        },
        note="PyTorch's elu, selu and celu: least is scale alpha, multiplied beforehand",
    ),
    "celu": Function(
        "fmax(x, 0) + fmin(0, alpha * expm1(x / alpha))", "", {"alpha": 1.0}, note="ONNX's: x is divided by alpha"
    ),
    "selu": Function(
        f"{SELU_SCALE} * (x > 0 ? x : {SELU_ALPHA} * expm1(x))",
        f"{SELU_SCALE} * (y > 0 ? 1 : y + {SELU_ALPHA})",
        note="the gradient below 0 is MXNet's: scale (alpha + y), where the derivative is scale alpha + y",
    ),
    "scaled_elu": Function(
        "x > 0 ? scale * x : scale * alpha * expm1(x)",
        "",
        {"alpha": SELU_ALPHA, "scale": SELU_SCALE},
        note="ONNX's selu, multiplied in another order",
    ),
    # gates
    "gelu": Function(
        "0.5 * x * erfc(-M_SQRT1_2 * x)",
        "0.5 * erfc(-M_SQRT1_2 * x) + x * exp(-0.5 * x * x) * (0.5 * M_SQRT1_2 * M_2_SQRTPI)",
        note="Hendrycks and Gimpel 2016; exact, by the normal distribution's integral",
    ),
    "gelu_erf": Function("0.5 * x * (1 + erf(x * M_SQRT1_2))", note="ONNX's: far below 0 the sum loses all digits"),
    "gelu_tanh": Function(
        f"0.5 * x * (1 + tanh({TANH_GELU}))",
        f"real t = tanh({TANH_GELU}); 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * {TANH_GELU_SLOPE}",
        note="an approximation of gelu",
    ),
    "silu": Function("x / (1 + exp(-x))", f"({SIGMOID}) * (1 + x * (1 / (1 + exp(x))))"),
    "swish": Function(
        "x / (1 + exp(-beta * x))",
        "real s = 1 / (1 + exp(-beta * x)); s + beta * x * s * (1 - s)",
        {"beta": 1.0},
        note="Ramachandran et al. 2017",
    ),
    "mish": Function(f"x * tanh({SOFTPLUS})", note="Misra 2019"),
    "hard_swish": Function(
        f"x * ({SIXTH})", "", {}, {SELECT: "x < -3 ? 0 : x <= 3 ? dy * (x / 3 + 0.5) : dy"}, note="NaN stays"
    ),
    # sigmoids
    "sigmoid": Function(SIGMOID, "y * (1 - y)", {}, {LEFT: "dy * y * (1 - y)"}),
    "hard_sigmoid": Function(
        "slope * x + offset < 0 ? 0 : slope * x + offset > 1 ? 1 : slope * x + offset",
        "slope * x + offset > 0 && slope * x + offset < 1 ? slope : 0",
        {"slope": 0.2, "offset": 0.5},
        note="NaN stays, its gradient is 0",
    ),
    "hard_sigmoid_1": Function(
        "fmax(0, fmin(1, slope * x + offset))", "", {"slope": 0.2, "offset": 0.5}, note="ONNX's: NaN becomes 1"
    ),
    "hard_sigmoid_6": Function(
        SIXTH, "", {}, {SELECT: "x > -3 && x < 3 ? dy / 6 : 0"}, note="PyTorch's: x is divided by 6; NaN stays"
    ),
    "log_sigmoid": Function("fmin(x, 0) - log1p(exp(-fabs(x)))", "-expm1(y)"),
    "tanh": Function("tanh(x)", "1 - y * y"),
    "scaled_tanh": Function("alpha * tanh(beta * x)", "", {"alpha": 1.0, "beta": 1.0}),
    "softrelu": Function(SOFTPLUS, "-expm1(-y)", note="log(1 + exp(x)), without overflow"),
    "bnll": Function(SOFTPLUS, SIGMOID, {}, {LEFT: "dy / (1 + exp(-x))"}, note="softrelu, its gradient from x"),
    "softsign": Function("x / (1 + fabs(x))", "1 / ((1 + fabs(x)) * (1 + fabs(x)))"),
    # signs and whole numbers
    "abs": Function("fabs(x)", SIGN, note="the gradient at 0 is 0"),
    "sign": Function(SIGN, "0", note="the sign of NaN is 0"),
    "negative": Function("-x", "-1"),
    "ceil": Function("ceil(x)"),
    "floor": Function("floor(x)"),
    "round": Function("rint(x)", note="half of an odd number goes to the even one"),
    # powers
    "linear": Function("factor * x + shift", "factor", {"factor": 1.0, "shift": 0.0}),
    "constant": Function("0 * x + level", "0", {"level": 0.0}, note="NaN and infinity become NaN"),
    "square": Function("x * x", "2 * x"),
    "scaled_square": Function(
        "(shift + scale * x) * (shift + scale * x)",
        "2 * scale * (shift + scale * x)",
        {"scale": 1.0, "shift": 0.0},
        {LEFT: "dy * 2 * scale * (shift + scale * x)"},
    ),
    "cube": Function("x * x * x"),
    "sqrt": Function("sqrt(x)", "0.5 / y"),
    "rsqrt": Function("1 / sqrt(x)", "-0.5 * y / x"),
    "reciprocal": Function("1 / x", "-y * y"),
    "quotient": Function("factor / x", "-factor / (x * x)", {"factor": 1.0}),
    "power": Function(
        "pow(shift + scale * x, power)",
        "power == 0 ? 0 : power * scale * pow(shift + scale * x, power - 1)",
        {"power": 1.0, "scale": 1.0, "shift": 0.0},
        {LEFT: "dy * power * scale * pow(shift + scale * x, power - 1)"},
    ),
    # exponentials and logarithms
    "exp": Function("exp(x)", "y"),
    "expm1": Function("expm1(x)", "y + 1"),
    "scaled_exp": Function(
        "factor * exp(scale * x)",
        "scale * y",
        {"factor": 1.0, "scale": 1.0},
        {LEFT: "dy * scale * y"},
        note="b^(s x + t) is factor b^t and scale s log(b)",
    ),
    "log": Function("log(x)", "1 / x"),
    "log1p": Function("log1p(x)", "1 / (1 + x)"),
    "scaled_log": Function(
        "factor * log(scale * x + shift)",
        "factor * scale / (scale * x + shift)",
        {"factor": 1.0, "scale": 1.0, "shift": 0.0},
        {LEFT: "dy * factor * scale / (scale * x + shift)"},
        note="the logarithm to base b has factor 1 / log(b)",
    ),
    # angles and integrals
    **{
        name: Function(f"{name}(x)")
        for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
    },
    "sin": Function("sin(x)", "cos(x)"),
    "cos": Function("cos(x)", "-sin(x)"),
    "erf": Function("erf(x)", "M_2_SQRTPI * exp(-x * x)"),
    # losses
    "smooth_l1": Function(
        "fabs(x) * s2 < 1 ? 0.5 * s2 * x * x : fabs(x) - 0.5 / s2",
        "fabs(x) * s2 < 1 ? s2 * x : x > 0 ? 1 : x < 0 ? -1 : x",
        {"s2": 1.0},
        note="Girshick 2015, the scalar being the square of sigma",
    ),
    # questions: 1 or 0
    "is_nan": Function("isnan(x)"),
    "is_infinite": Function("x == INFINITY || x == (-INFINITY)"),
    "is_infinity": Function("x == INFINITY"),
    "is_negative_infinity": Function("x == (-INFINITY)"),
    "never": Function("x != x && x == x"),
    "not": Function("x == 0"),
}

# the gradient of a slope of leaky_relu that is learned (He et al. 2015, "Delving deep into rectifiers")
SLOPE_GRADIENTS = {SELECT: "x > 0 ? 0 : dy * x", LEFT: "x <= 0 ? dy * x : 0"}


def find(name: str) -> Function:
    """Return a function by its name.

    Raises
    ------
    ProblemError
        If there is none; the text lists them.
    """
    if name not in ACTIVATIONS:
        near = hint(str(name), ACTIVATIONS)
        raise ProblemError(f"[activation] got {name!r}, expected one of {sorted(ACTIVATIONS)}{near}")
    return ACTIVATIONS[name]


# exponent -> the function that computes the power by products and roots
_EXACT = {1.0: "identity", 2.0: "square", 3.0: "cube", 0.5: "sqrt", -1.0: "reciprocal", -0.5: "rsqrt"}


def exact_power(exponent: float, rsqrt: bool = True) -> Function | None:
    """Return the function ``x^exponent`` as products and roots, or None; without `rsqrt`, -0.5 is none of them."""
    name = _EXACT.get(exponent)
    return None if name is None or (name == "rsqrt" and not rsqrt) else find(name)


def exact_power_name(exponent: float) -> str:
    """Return the name of the function that `exact_power` returns; empty where that is None."""
    return _EXACT.get(exponent, "")


# an operation with a number -> factor and shift of ``factor x + shift``
_WITH_NUMBER: dict[str, Callable[[float], tuple[float, float]]] = {
    "add": lambda number: (1.0, number),
    "subtract": lambda number: (1.0, -number),
    "subtract_from": lambda number: (-1.0, number),
    "multiply": lambda number: (number, 0.0),
    "divide": lambda number: (1 / number, 0.0),
}


def with_number(operation: str, number: float) -> Function:
    """Return what ``add subtract multiply divide`` make of x and a number; ``subtract_from`` is number - x."""
    factor, shift = _WITH_NUMBER[operation](number)
    return find("linear").given(factor=factor, shift=shift)


def smooth_l1(sigma: float) -> Function:
    """Return ``0.5 (sigma x)^2`` near 0 and ``|x| - 0.5 / sigma^2`` elsewhere (Girshick 2015)."""
    return find("smooth_l1").given(s2=sigma**2)


def scaled_power(exponent: float, scale: float, shift: float) -> Function:
    """Return ``(shift + scale x)^exponent``, as products where it is one.

    By `LEFT` the gradient is the formula's everywhere, also where the base is 0.
    """
    if exponent == 1:
        return find("linear").given(factor=scale, shift=shift)
    if exponent == 2:
        return find("scaled_square").given(scale=scale, shift=shift)
    if exponent * scale == 0:
        return find("constant").given(level=1.0 if exponent == 0 else shift**exponent)
    return find("power").given(power=exponent, scale=scale, shift=shift)


def exponential(base: float | None, scale: float, shift: float) -> Function:
    """Return ``base^(shift + scale x)``; None stands for e."""
    logarithm = _logarithm(base)
    return find("scaled_exp").given(factor=math.exp(logarithm * shift), scale=logarithm * scale)


def logarithm(base: float | None, scale: float, shift: float) -> Function:
    """Return the logarithm of ``shift + scale x``; None stands for base e."""
    return find("scaled_log").given(factor=1 / _logarithm(base), scale=scale, shift=shift)


def _logarithm(base: float | None) -> float:
    """Return the natural logarithm of a base."""
    return 1.0 if base is None else math.log(base)


def celu(alpha: float) -> Function:
    """Return ``x`` above 0 and ``alpha (exp(x / alpha) - 1)`` elsewhere (Barron 2017)."""
    return elu(alpha, 1.0, 1 / alpha)


def elu(alpha: float, scale: float, stretch: float) -> Function:
    """Return ``scale x`` above 0 and ``scale alpha (exp(stretch x) - 1)`` elsewhere."""
    if scale == 1 and stretch == 1:
        return find("elu").given(alpha=alpha)
    return find("stretched_elu").given(scale=scale, least=scale * alpha, stretch=stretch)
