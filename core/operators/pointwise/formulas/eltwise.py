"""Arithmetic of several tensors and its gradients, as pointwise problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.operators.pointwise.chain import Formula
from clgraft.core.operators.pointwise.problem import broadcast_shape

TIES = ("first", "second", "all")


def _shapes(shape: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    if count < 1:
        raise ProblemError(f"[eltwise] got {count} inputs, expected at least 1")
    return (tuple(shape),) * count


def _expect_ties(ties: str) -> None:
    if ties not in TIES:
        raise ProblemError(f"[eltwise] got ties {ties!r}, expected one of {TIES}")


def sum_forward(shape: Sequence[int], count: int, weighted: bool = False, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0, x1, ... -> y0 of a sum.

    Parameters
    ----------
    shape : sequence of int
        Of every tensor.
    count : int
        Number of inputs.
    weighted : bool
        Multiply them by the scalars c0, c1, ...
    """
    names = tuple(f"c{i}" for i in range(count)) if weighted else ()
    terms = (f"c{i} * x{i}" if weighted else f"x{i}" for i in range(count))
    return PointwiseProblem(_shapes(shape, count), f"y0 = {' + '.join(terms)};", (), names, dtype=dtype)


def scale_forward(shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 -> y0 of a product with the scalar c0: also each gradient of a weighted sum."""
    return PointwiseProblem(_shapes(shape, 1), "y0 = c0 * x0;", (), ("c0",), dtype=dtype)


def product_forward(shape: Sequence[int], count: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0, x1, ... -> y0 of a product."""
    product = " * ".join(f"x{i}" for i in range(count))
    return PointwiseProblem(_shapes(shape, count), f"y0 = {product};", dtype=dtype)


def product_backward(shape: Sequence[int], count: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = dy, x1, x2, ... -> y0, y1, ... of a product's gradients, right for factors of 0 too.

    Notes
    -----
    Products of the factors before and of those after each one: no division, and only 3 `count` multiplications.
    """
    _shapes(shape, count)
    before = "".join(
        f"real b{i} = " + ("x0; " if i == 0 else f"b{i - 1} * x{i}; ") for i in range(count)
    )  # b_i = dy * x_1 ... x_i
    after = "".join(
        f"real a{i} = " + (f"x{i + 2}; " if i == count - 2 else f"x{i + 2} * a{i + 1}; ")
        for i in reversed(range(count - 1))
    )
    result = "".join(f"y{i} = b{i}" + (f" * a{i}; " if i < count - 1 else "; ") for i in range(count))
    return PointwiseProblem(_shapes(shape, count + 1), before + after + result, dtype=dtype)


def max_forward(shape: Sequence[int], count: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0, x1, ... -> y0 of the greatest; a NaN in x0 stays, in the others it loses."""
    steps = "".join(f"y0 = x{i} > y0 ? x{i} : y0; " for i in range(1, count))
    return PointwiseProblem(_shapes(shape, count), "y0 = x0; " + steps, dtype=dtype)


def max_backward(shape: Sequence[int], count: int, ties: str = "first", dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = dy, x1, x2, ... -> y0, y1, ... of the greatest's gradients.

    Parameters
    ----------
    ties : str
        Who gets the gradient where inputs are equal: ``first`` (MXNet), ``second`` (Caffe: of the first two inputs the
        second one, later ones only if strictly greater), or ``all``.
    """
    _expect_ties(ties)
    if ties == "all":
        top = "real top = x1; " + "".join(f"top = x{i} > top ? x{i} : top; " for i in range(2, count + 1))
        text = top + "".join(f"y{i} = x{i + 1} == top ? x0 : 0; " for i in range(count))
    else:
        steps = []
        for i in range(2, count + 1):
            sign = ">=" if ties == "second" and i == 2 else ">"
            steps.append(f"winner = x{i} {sign} top ? {i - 1} : winner; top = x{i} > top ? x{i} : top; ")
        text = "real top = x1; real winner = 0; " + "".join(steps)
        text += "".join(f"y{i} = winner == {i} ? x0 : 0; " for i in range(count))
    return PointwiseProblem(_shapes(shape, count + 1), text, dtype=dtype)


@dataclass(frozen=True)
class Binary:
    """A function of ``a`` and ``b``, its two gradients from ``dy``, and which inputs these read."""

    forward: str
    da: str
    db: str
    reads: tuple[str, ...] = ()


BINARY: dict[str, Binary] = {
    "add": Binary("a + b", "dy", "dy"),
    "subtract": Binary("a - b", "dy", "-dy"),
    "multiply": Binary("a * b", "dy * b", "dy * a", ("a", "b")),
    "divide": Binary("a / b", "dy / b", "-dy * a / (b * b)", ("a", "b")),
    "power": Binary(
        "pow(a, b)",
        "b == 0 ? 0 : dy * b * pow(a, b - 1)",
        "dy * pow(a, b) * log(a)",
        ("a", "b"),
    ),
    "maximum": Binary("a >= b || isnan(a) ? a : b", "a >= b ? dy : 0", "a < b ? dy : 0", ("a", "b")),
    "minimum": Binary("a <= b || isnan(a) ? a : b", "a <= b ? dy : 0", "a > b ? dy : 0", ("a", "b")),
    "hypot": Binary("hypot(a, b)", "dy * a / hypot(a, b)", "dy * b / hypot(a, b)", ("a", "b")),
}


def find_binary(name: str) -> Binary:
    """Return a binary function by its name.

    Raises
    ------
    ProblemError
        If there is none; the text lists them.
    """
    if name not in BINARY:
        raise ProblemError(f"[eltwise] got {name!r}, expected one of {sorted(BINARY)}")
    return BINARY[name]


def formula(operation: str, count: int = 2) -> Formula | None:
    """Return a binary function of a and b, or a sum, as a part of a chain; None for other functions of many inputs."""
    if count == 2:
        binary = find_binary(operation)
        return Formula(("a", "b"), binary.forward, (binary.da, binary.db), {})
    if operation != "add":
        return None
    names = tuple(f"a{i}" for i in range(count))
    return Formula(names, " + ".join(names), ("dy",) * count, {})


def binary_forward(name: str, a: Sequence[int], b: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = a, x1 = b -> y0 of a binary function, with numpy's broadcasting.

    Parameters
    ----------
    name : str
        A key of `BINARY`; ties of maximum and minimum go to a, and a NaN in either is the result and has no gradient.
    a, b : sequence of int
        Shapes.
    """
    text = f"real a = x0; real b = x1; y0 = {find_binary(name).forward};"
    return PointwiseProblem((tuple(a), tuple(b)), text, dtype=dtype)


def binary_backward(name: str, a: Sequence[int], b: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = dy, x1, ... -> y0 = da, y1 = db of a binary function's gradients.

    The gradients have their inputs' shapes.

    Notes
    -----
    x1 is a and x2 is b if `Binary.reads` names them; where it is empty dy is the only input.
    """
    binary = find_binary(name)
    a, b = tuple(a), tuple(b)
    common = broadcast_shape((a, b))
    shapes = (common, *({"a": a, "b": b}[read] for read in binary.reads))
    loads = "real dy = x0; " + "".join(f"real {read} = x{i}; " for i, read in enumerate(binary.reads, 1))
    reductions = tuple(None if shape == common else Reduction("sum", shape=shape) for shape in (a, b))
    return PointwiseProblem(shapes, f"{loads}y0 = {binary.da}; y1 = {binary.db};", reductions, dtype=dtype)
