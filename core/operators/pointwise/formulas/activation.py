"""Activation functions and their gradients as pointwise problems: a table of expressions and what gradients read.

A gradient here is a factor on dy that keeps NaN where the table says so. `functions` has others of the same names for
chains of operators, which multiply dy from the left and are 0 at NaN: the order of the products and these values are
part of the results, so that neither can stand for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.operators.pointwise.chain import Formula

SELU_ALPHA, SELU_SCALE = (
    1.6732632423543772,
    1.0507009873554805,
)  # Klambauer et al. 2017, "Self-normalizing neural networks"


@dataclass(frozen=True)
class Activation:
    """One function.

    Attributes
    ----------
    forward : str
        The value, of ``x``.
    backward : str
        The gradient's factor on dy, of what it reads.
    reads : tuple of str
        Which of ``x`` and ``y`` the gradient reads, in the order of the backward problem's inputs after dy.
    scalars : tuple of (str, float)
        Run-time parameters and their usual values.
    note : str
        Conventions where they could be otherwise.
    """

    forward: str
    backward: str
    reads: tuple[str, ...]
    scalars: tuple[tuple[str, float], ...] = ()
    note: str = ""


_SIGMOID = "1 / (1 + exp(-x))"
_SOFTPLUS = "fmax(x, 0) + log1p(exp(-fabs(x)))"

ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation("x", "1", ()),
    "relu": Activation("x > 0 ? x : 0", "y > 0 ? 1 : 0", ("y",), note="NaN becomes 0; the gradient at 0 is 0"),
    "relu_keep_nan": Activation(
        "x < 0 ? 0 : x", "isnan(y) ? y : y > 0 ? 1 : 0", ("y",), note="as relu, but NaN stays NaN, in the gradient too"
    ),
    "leaky_relu": Activation(
        "x > 0 ? x : slope * x",
        "x <= 0 ? slope : 1",
        ("x",),
        (("slope", 0.25),),
        "the gradient at 0 is slope, that of NaN 1",
    ),
    "elu": Activation(
        "x > 0 ? x : alpha * expm1(x)",
        "x <= 0 ? y + alpha : 1",
        ("x", "y"),
        (("alpha", 1.0),),
        "the gradient at 0 is alpha, that of NaN 1; in place, y may stand for x if alpha is not negative",
    ),
    "selu": Activation(
        f"{SELU_SCALE} * (x > 0 ? x : {SELU_ALPHA} * expm1(x))",
        f"{SELU_SCALE} * (y > 0 ? 1 : y + {SELU_ALPHA})",
        ("y",),
        note="the gradient below 0 is MXNet's: scale (alpha + y), where the derivative is scale alpha + y",
    ),
    "gelu": Activation(
        "0.5 * x * erfc(-M_SQRT1_2 * x)",
        "0.5 * erfc(-M_SQRT1_2 * x) + x * exp(-0.5 * x * x) * (0.5 * M_SQRT1_2 * M_2_SQRTPI)",
        ("x",),
        note="exact, by the normal distribution's integral",
    ),
    "sigmoid": Activation(_SIGMOID, "y * (1 - y)", ("y",)),
    "hard_sigmoid": Activation(
        "slope * x + offset < 0 ? 0 : slope * x + offset > 1 ? 1 : slope * x + offset",
        "slope * x + offset > 0 && slope * x + offset < 1 ? slope : 0",
        ("x",),
        (("slope", 0.2), ("offset", 0.5)),
    ),
    "log_sigmoid": Activation("fmin(x, 0) - log1p(exp(-fabs(x)))", "-expm1(y)", ("y",)),
    "silu": Activation("x / (1 + exp(-x))", f"({_SIGMOID}) * (1 + x * (1 / (1 + exp(x))))", ("x",)),
    "tanh": Activation("tanh(x)", "1 - y * y", ("y",)),
    "softrelu": Activation(_SOFTPLUS, "-expm1(-y)", ("y",), note="log(1 + exp(x)), without overflow"),
    "bnll": Activation(_SOFTPLUS, _SIGMOID, ("x",), note="softrelu, its gradient taken from x"),
    "softsign": Activation("x / (1 + fabs(x))", "1 / ((1 + fabs(x)) * (1 + fabs(x)))", ("x",)),
    "clip": Activation(
        "x < low ? low : x > high ? high : x",
        "x < low || x > high ? 0 : 1",
        ("x",),
        (("low", 0.0), ("high", 6.0)),
        "the gradient at both bounds and of NaN is 1",
    ),
    "threshold": Activation("x > threshold ? 1 : 0", "0", (), (("threshold", 0.0),)),
    "abs": Activation("fabs(x)", "x > 0 ? 1 : x < 0 ? -1 : 0", ("x",), note="the gradient at 0 is 0"),
    "sign": Activation("x > 0 ? 1 : x < 0 ? -1 : 0", "0", (), note="the sign of NaN is 0"),
    "negative": Activation("-x", "-1", ()),
    "square": Activation("x * x", "2 * x", ("x",)),
    "sqrt": Activation("sqrt(x)", "0.5 / y", ("y",)),
    "rsqrt": Activation("1 / sqrt(x)", "-0.5 * y / x", ("x", "y")),
    "reciprocal": Activation("1 / x", "-y * y", ("y",)),
    "sin": Activation("sin(x)", "cos(x)", ("x",)),
    "cos": Activation("cos(x)", "-sin(x)", ("x",)),
    "erf": Activation("erf(x)", "M_2_SQRTPI * exp(-x * x)", ("x",)),
    "expm1": Activation("expm1(x)", "y + 1", ("y",)),
    "log1p": Activation("log1p(x)", "1 / (1 + x)", ("x",)),
    "linear": Activation("factor * x + shift", "factor", (), (("factor", 1.0), ("shift", 0.0))),
    "quotient": Activation("factor / x", "-factor / (x * x)", ("x",), (("factor", 1.0),)),
    "at_least": Activation(
        "x >= level || isnan(x) ? x : level", "x >= level ? 1 : 0", ("x",), (("level", 0.0),), "1 at the level"
    ),
    "at_most": Activation(
        "x <= level || isnan(x) ? x : level", "x <= level ? 1 : 0", ("x",), (("level", 0.0),), "1 at the level"
    ),
    "smooth_l1": Activation(
        "fabs(x) * s2 < 1 ? 0.5 * s2 * x * x : fabs(x) - 0.5 / s2",
        "fabs(x) * s2 < 1 ? s2 * x : x > 0 ? 1 : x < 0 ? -1 : x",
        ("x",),
        (("s2", 1.0),),
        "Girshick 2015, the scalar being the square of sigma",
    ),
    "power": Activation(
        "pow(shift + scale * x, power)",
        "power == 0 ? 0 : power * scale * pow(shift + scale * x, power - 1)",
        ("x",),
        (("power", 1.0), ("scale", 1.0), ("shift", 0.0)),
    ),
    "exp": Activation(
        "factor * exp(scale * x)",
        "scale * y",
        ("y",),
        (("factor", 1.0), ("scale", 1.0)),
        "b^(s x + t) is factor b^t and scale s log(b)",
    ),
    "log": Activation(
        "factor * log(scale * x + shift)",
        "factor * scale / (scale * x + shift)",
        ("x",),
        (("factor", 1.0), ("scale", 1.0), ("shift", 0.0)),
        "the logarithm to base b has factor 1 / log(b)",
    ),
}


def find(name: str) -> Activation:
    """Return an activation by its name.

    Raises
    ------
    ProblemError
        If there is none; the text lists them.
    """
    if name not in ACTIVATIONS:
        raise ProblemError(f"[activation] got {name!r}, expected one of {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def formula(name: str, scalars: Sequence[float] = ()) -> Formula:
    """Return an activation of x as a part of a chain; `scalars` in order."""
    found = find(name)
    values = {scalar: value for (scalar, _), value in zip(found.scalars, scalars)}
    return Formula(("x",), found.forward, (f"dy * ({found.backward})",), values)


def forward(name: str, shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 -> y0 of an activation.

    Parameters
    ----------
    name : str
        A key of `ACTIVATIONS`.
    shape : sequence of int
        Of x and y; y may be x's own memory.
    dtype : str

    Returns
    -------
    PointwiseProblem
        Its scalars are the activation's, in order.
    """
    activation = find(name)
    names = tuple(scalar for scalar, _ in activation.scalars)
    return PointwiseProblem((tuple(shape),), f"real x = x0; y0 = {activation.forward};", (), names, dtype=dtype)


def backward(name: str, shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem of an activation's gradient.

    Returns
    -------
    PointwiseProblem
        x0 is dy, x1 and so on are what `Activation.reads` lists; y0 is dx, which may be dy's own memory.
        The scalars are the activation's.
    """
    activation = find(name)
    names = tuple(scalar for scalar, _ in activation.scalars)
    loads = "".join(f"real {tensor} = x{i}; " for i, tensor in enumerate(activation.reads, 1))
    shapes = (tuple(shape),) * (1 + len(activation.reads))
    return PointwiseProblem(shapes, f"{loads}y0 = x0 * ({activation.backward});", (), names, dtype=dtype)


def _slope_shape(shape: Sequence[int], axis: int, shared: bool) -> tuple[int, ...]:
    if not -len(shape) <= axis < len(shape):
        raise ProblemError(f"[activation] got axis {axis}, expected one of a shape {tuple(shape)}")
    axis %= len(shape)
    return (1,) if shared else (shape[axis],) + (1,) * (len(shape) - axis - 1)


def prelu_forward(
    shape: Sequence[int], axis: int = 1, shared: bool = False, dtype: str = "float32"
) -> PointwiseProblem:
    """Return the problem x0 = x, x1 = slope -> y0 of a rectifier with learned slopes.

    The method: He et al. 2015, "Delving deep into rectifiers".

    Parameters
    ----------
    shape : sequence of int
        Of x.
    axis : int
        The axis with a slope each.
    shared : bool
        One slope for all.
    """
    return PointwiseProblem(
        (tuple(shape), _slope_shape(shape, axis, shared)), "y0 = x0 > 0 ? x0 : x1 * x0;", dtype=dtype
    )


def prelu_backward(
    shape: Sequence[int], axis: int = 1, shared: bool = False, dtype: str = "float32"
) -> PointwiseProblem:
    """Return the problem x0 = dy, x1 = x, x2 = slope -> y0 = dx, y1 = dslope; at 0 the gradient is the slope."""
    slope = _slope_shape(shape, axis, shared)
    return PointwiseProblem(
        (tuple(shape), tuple(shape), slope),
        "y0 = x1 > 0 ? x0 : x2 * x0; y1 = x1 > 0 ? 0 : x0 * x1;",
        (None, Reduction("sum", shape=slope)),
        dtype=dtype,
    )
