"""Functions of several tensors, element by element: arithmetic, comparisons, sums, products and maxima of many.

Formulas are those of `formulas`: a value of ``a`` and ``b``, or of ``x0``, ``x1``, ...; gradients of these and ``dy``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.expressions import evaluated
from clgraft.core.nn.formulas import assigned, names_in, renamed
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.operators.pointwise.problem import broadcast_shape

MOST_TERMS = 62  # most terms of a sum in one kernel: devices limit arguments, and compilers nesting
PART_TERMS = 32  # terms in each kernel of a longer sum


@dataclass(frozen=True)
class Binary:
    """A function of ``a`` and ``b``.

    Attributes
    ----------
    value : str
    da, db : str
        Gradients; empty where no adapter has one of its own: a graph's gradients are then derived from the value.
    scalars : mapping of str to float
        Run-time parameters and their usual values.
    note : str
        Conventions where they could be otherwise.
    """

    value: str
    da: str = ""
    db: str = ""
    scalars: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """Which of ``a`` and ``b`` the gradients read, in the order of the inputs of `binary_backward` after dy."""
        return tuple(name for name in ("a", "b") if name in names_in(f"{self.da} {self.db}"))


BINARY: dict[str, Binary] = {
    "add": Binary("a + b", "dy", "dy"),
    "add_multiple": Binary("a + factor * b", "dy", "factor * dy", {"factor": 1.0}),
    "subtract": Binary("a - b", "dy", "-dy"),
    "subtract_multiple": Binary("a - factor * b", "dy", "-factor * dy", {"factor": 1.0}),
    "multiply": Binary("a * b", "dy * b", "dy * a"),
    "divide": Binary("a / b", "dy / b", "-dy * a / (b * b)"),
    "fmod": Binary("fmod(a, b)", note="the remainder has the sign of a"),
    "modulo": Binary(
        "real r = fmod(a, b); r != 0 && (r < 0) != (b < 0) ? r + b : r", note="the remainder has the sign of b"
    ),
    "remainder": Binary(
        "real r = b == 0 ? 0 : fmod(a, b); r != 0 && (r < 0) != (b < 0) ? r + b : r",
        note="MXNet's: as modulo, and 0 for b of 0",
    ),
    "whole_quotient": Binary(
        "b == 0 ? 0 : rint((a - fmod(a, b)) / b)", note="of whole numbers, without its fraction, as in C; 0 for b of 0"
    ),
    "power": Binary("pow(a, b)", "b == 0 ? 0 : dy * b * pow(a, b - 1)", "dy * pow(a, b) * log(a)"),
    "hypot": Binary("hypot(a, b)", "dy * a / hypot(a, b)", "dy * b / hypot(a, b)"),
    "maximum": Binary(
        "a >= b || isnan(a) ? a : b",
        "a >= b ? dy : 0",
        "a < b ? dy : 0",
        note="MXNet's: of equals the first wins; a NaN in either is the value and has no gradient",
    ),
    "maximum_last": Binary("a > b || isnan(a) ? a : b", note="ONNX's and PyTorch's: of equals the last; NaN stays"),
    "minimum": Binary("a <= b || isnan(a) ? a : b", "a <= b ? dy : 0", "a > b ? dy : 0", note="as maximum"),
    "minimum_last": Binary("a < b || isnan(a) ? a : b", note="as maximum_last"),
    # 1 or 0
    "equal": Binary("a == b"),
    "greater": Binary("a > b"),
    "greater_or_equal": Binary("a >= b"),
    "less": Binary("a < b"),
    "less_or_equal": Binary("a <= b"),
    "and": Binary("a && b"),
    "or": Binary("a || b"),
    "xor": Binary("(a != 0) != (b != 0)"),
}
SELECTION = "x0 != 0 ? x1 : x2"


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


def binary_forward(name: str, a: Sequence[int], b: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = a, x1 = b -> y0 of a binary function, with numpy's broadcasting.

    Parameters
    ----------
    name : str
        A key of `BINARY`.
    a, b : sequence of int
        Shapes.
    """
    text = f"real a = x0; real b = x1; {assigned('y0', find_binary(name).value)}"
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


@dataclass(frozen=True)
class Combination:
    """A function of several values.

    Attributes
    ----------
    value : str
    gradients : mapping of str to str
        The gradient of each value, by its name.
    before : str
        Declarations that the gradients share.
    """

    value: str
    gradients: Mapping[str, str]
    before: str = ""

    @property
    def forward(self) -> str:
        """The assignment to y."""
        return assigned("y", self.value)

    def backward(self, wanted: Iterable[str] | None = None) -> str:
        """Return the assignments to the gradients of the wanted values, ``dx0`` for ``x0``; all by default."""
        names = self.gradients if wanted is None else wanted
        return self.before + " ".join(f"d{name} = {self.gradients[name]};" for name in names)


def affine(bias: bool) -> Combination:
    """Return ``x g``, or ``x g + b``."""
    return Combination(f"x * g{' + b' * bias}", {"g": "dy * x", "b": "dy", "x": "dy * g"})


def shifted() -> Combination:
    """Return ``x + b``."""
    return Combination("x + b", {"b": "dy", "x": "dy"})


def _names(count: int) -> list[str]:
    return [f"x{i}" for i in range(count)]


def total(factors: Sequence[float | str]) -> Combination:
    """Return a sum; factors are numbers, of which 1 is no multiplication, or names of scalars."""
    texts = [factor if isinstance(factor, str) else repr(factor) if factor != 1 else "" for factor in factors]
    terms = [f"{text} * {{}}" if text else "{}" for text in texts]
    names = _names(len(terms))
    value = " + ".join(term.format(name) for name, term in zip(names, terms))
    return Combination(value, {name: term.format("dy") for name, term in zip(names, terms)})


def mean(count: int) -> str:
    """Return the mean of values."""
    return f"({' + '.join(_names(count))}) / {count}"


def product(count: int, shared: bool = False) -> Combination:
    """Return a product; its gradients are right for factors of 0 too, as nothing is divided.

    Parameters
    ----------
    count : int
    shared : bool
        Whether the gradients share the products of the factors before and of those after each one, which takes only
        3 `count` multiplications (MXNet); otherwise each is dy times the other factors, in their order (Caffe).
    """
    names = _names(count)
    value = " * ".join(names)
    if not shared:
        return Combination(value, {n: " * ".join(["dy", *names[:i], *names[i + 1 :]]) for i, n in enumerate(names)})
    before = "".join(f"real b{i} = " + (f"b{i - 1} * x{i - 1}; " if i else "dy; ") for i in range(count))
    after = "".join(
        f"real a{i} = " + (f"x{i + 1}; " if i == count - 2 else f"x{i + 1} * a{i + 1}; ")
        for i in reversed(range(count - 1))
    )
    gradients = {name: f"b{i}" + (f" * a{i}" if i < count - 1 else "") for i, name in enumerate(names)}
    return Combination(value, gradients, before + after)


FIRST, SECOND, ALL = TIES = ("first", "second", "all")


def maximum(count: int, ties: str = FIRST) -> Combination:
    """Return the greatest value.

    Parameters
    ----------
    count : int
    ties : str
        Who gets the gradient where values are equal: ``first`` (MXNet), ``second`` (Caffe: of the first two values the
        second, later ones only if they are greater), or ``all``. A NaN in x0 stays, in others it loses; with
        ``second`` it is one in x1 that stays.
    """
    if ties not in TIES:
        raise ProblemError(f"[eltwise] got ties {ties!r}, expected one of {TIES}")
    names, later = _names(count), range(1, count)
    if ties == SECOND and count > 1:
        winner = "real top1 = x0 > x1 ? x0 : x1; real who1 = x0 > x1 ? 0 : 1; "
        for i in range(2, count):
            greater = f"x{i} > top{i - 1}"
            winner += f"real top{i} = {greater} ? x{i} : top{i - 1}; real who{i} = {greater} ? {i} : who{i - 1}; "
        wins = {name: f"who{count - 1} == {i} ? dy : 0" for i, name in enumerate(names)}
        return Combination(f"{winner}top{count - 1}", wins, winner)
    steps = ["x0", *(f"x{i} > y ? x{i} : y" for i in later)]
    value = "".join(f"y = {step}; " for step in steps[:-1]) + steps[-1]
    if ties == ALL:
        top = "real top = x0; " + "".join(f"top = x{i} > top ? x{i} : top; " for i in later)
        return Combination(value, {name: f"{name} == top ? dy : 0" for name in names}, top)
    winner = "real top = x0; real winner = 0; "
    winner += "".join(f"winner = x{i} > top ? {i} : winner; top = x{i} > top ? x{i} : top; " for i in later)
    return Combination(value, {name: f"winner == {i} ? dy : 0" for i, name in enumerate(names)}, winner)


def extremum(count: int, step: str) -> str:
    """Return the greatest or smallest of values, by ``maximum_last`` or ``minimum_last`` of two: NaN stays."""
    value, text = find_binary(step).value, "real t0 = x0; "
    for i in range(1, count):
        text += f"real t{i} = {renamed(value, {'a': f't{i - 1}', 'b': f'x{i}'})}; "
    return f"{text}t{count - 1}"


def limited(low: bool, high: bool) -> str:
    """Return x0, at least x1 and then at most the next value, each if there is one; NaN in x0 stays."""
    texts: list[str] = []
    last = "x0"
    for sign in ["<"] * low + [">"] * high:
        number = len(texts) + 1
        texts.append(f"real t{number} = {last} {sign} x{number} ? x{number} : {last}; ")
        last = f"t{number}"
    return "".join(texts) + last


def _shapes(shape: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    if count < 1:
        raise ProblemError(f"[eltwise] got {count} inputs, expected at least 1")
    return (tuple(shape),) * count


def _forward(combination: Combination, shapes: tuple[tuple[int, ...], ...], dtype: str) -> PointwiseProblem:
    return PointwiseProblem(shapes, renamed(combination.forward, {"y": "y0"}), dtype=dtype)


def _backward(combination: Combination, shapes: tuple[tuple[int, ...], ...], dtype: str) -> PointwiseProblem:
    """Return the problem x0 = dy, x1, x2, ... -> y0, y1, ... of a combination's gradients."""
    count = len(shapes) - 1
    names = {"dy": "x0", **{f"x{i}": f"x{i + 1}" for i in range(count)}, **{f"dx{i}": f"y{i}" for i in range(count)}}
    return PointwiseProblem(shapes, renamed(combination.backward(), names), dtype=dtype)


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
    text = total(names or (1,) * count).forward
    return PointwiseProblem(_shapes(shape, count), renamed(text, {"y": "y0"}), (), names, dtype=dtype)


def scale_forward(shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 -> y0 of a product with the scalar c0: also each gradient of a weighted sum."""
    return PointwiseProblem(_shapes(shape, 1), "y0 = c0 * x0;", (), ("c0",), dtype=dtype)


def product_forward(shape: Sequence[int], count: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0, x1, ... -> y0 of a product."""
    return _forward(product(count), _shapes(shape, count), dtype)


def product_backward(shape: Sequence[int], count: int, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = dy, x1, x2, ... -> y0, y1, ... of a product's gradients, with shared products."""
    return _backward(product(count, shared=True), _shapes(shape, count + 1), dtype)


def max_forward(shape: Sequence[int], count: int, ties: str = FIRST, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0, x1, ... -> y0 of the greatest."""
    return _forward(maximum(count, ties), _shapes(shape, count), dtype)


def max_backward(shape: Sequence[int], count: int, ties: str = FIRST, dtype: str = "float32") -> PointwiseProblem:
    """Return the problem x0 = dy, x1, x2, ... -> y0, y1, ... of the greatest's gradients."""
    return _backward(maximum(count, ties), _shapes(shape, count + 1), dtype)


def constant_binary(build: Build, name: str, a: Tensor, b: Tensor) -> Tensor:
    """Return a binary function through which no gradient flows, with numpy's broadcasting."""
    first = build.here
    (y,) = build.add(binary_forward(name, a.shape, b.shape, a.dtype), a, b)
    build.state_gradient(first, (a, b), (y,), lambda build, dys, wanted: (None, None))
    return y


def binary(build: Build, name: str, a: Tensor, b: Tensor) -> Tensor:
    """Return a binary function, with numpy's broadcasting."""
    first = build.here
    (y,) = build.add(binary_forward(name, a.shape, b.shape, a.dtype), a, b)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        read = ({"a": a, "b": b}[tensor] for tensor in find_binary(name).reads)
        return _gradients(build, binary_backward(name, a.shape, b.shape, a.dtype), dys, wanted, read)

    build.state_gradient(first, (a, b), (y,), gradient)
    return y


def summed(build: Build, terms: Sequence[Tensor], factors: Sequence[float] = ()) -> Tensor:
    """Return the sum of values of one shape, each times a factor; a long one in several problems.

    Each has a gradient of its own: a write request applies to it alone.
    """
    first, shape, dtype = build.here, terms[0].shape, terms[0].dtype
    most = len(terms) if len(terms) <= MOST_TERMS else PART_TERMS
    left = list(zip(terms, factors or (1.0,) * len(terms)))
    while True:
        part, left = left[:most], left[most:]
        problem = sum_forward(shape, len(part), bool(factors), dtype)
        numbers = (factor for _, factor in part) if factors else ()
        (y,) = build.add(problem, *(term for term, _ in part), scalars=dict(zip(problem.scalars(), numbers)))
        if not left:
            break
        left.insert(0, (y, 1.0))

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        scaled = scale_forward(shape, dtype)
        return tuple(
            build.add(scaled, dy, scalars=dict(zip(scaled.scalars(), (factor,))))[0] if asked else None
            for factor, asked in zip(factors or (1.0,) * len(terms), wanted)
        )

    build.state_gradient(first, tuple(terms), (y,), gradient)
    return y


def multiplied(build: Build, factors: Sequence[Tensor]) -> Tensor:
    """Return the product of values of one shape."""
    shape, count, dtype = factors[0].shape, len(factors), factors[0].dtype
    problems = product_forward(shape, count, dtype), product_backward(shape, count, dtype)
    return _together(build, factors, *problems)


def greatest(build: Build, values: Sequence[Tensor], ties: str = FIRST) -> Tensor:
    """Return the greatest of values of one shape; `ties` says which of equal ones gets the gradient."""
    shape, count, dtype = values[0].shape, len(values), values[0].dtype
    problems = max_forward(shape, count, ties, dtype), max_backward(shape, count, ties, dtype)
    return _together(build, values, *problems)


def _together(build: Build, values: Sequence[Tensor], problem: PointwiseProblem, gradients: PointwiseProblem) -> Tensor:
    """Return a function of values whose gradients one problem computes, from dy and all values."""
    first = build.here
    (y,) = build.add(problem, *values)

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return _gradients(build, gradients, dys, wanted, values)

    build.state_gradient(first, tuple(values), (y,), gradient)
    return y


def _gradients(
    build: Build,
    problem: PointwiseProblem,
    dys: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
    read: Iterable[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the wanted outputs of a problem that reads dy and more."""
    (dy,) = dys
    assert dy is not None
    unwanted = [f"y{i}" for i, asked in enumerate(wanted) if not asked]
    found = build.add(problem, dy, *read, unwanted=unwanted)
    return tuple(one if asked else None for one, asked in zip(found, wanted))


def combined(build: Build, combination: Combination, values: Mapping[str, Tensor]) -> Tensor:
    """Return a combination of values that broadcast; one problem computes the gradients that are wanted.

    Parameters
    ----------
    values : mapping of str to Tensor
        By the combination's names. Gradients are summed over the axes along which they are broadcast.
    """
    first = build.here
    (y,) = evaluated(build, combination.forward, values, {"y": None})

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        asked = {name for name, one in zip(values, wanted) if one}
        found = {name: dy for name in asked if _passes(build, combination, name, values[name])}
        names = [name for name in combination.gradients if name in asked and name not in found]
        if names:
            shapes = {f"d{name}": None if values[name].shape == y.shape else values[name].shape for name in names}
            text = combination.backward(names)
            found.update(zip(names, evaluated(build, text, {**values, "dy": dy}, shapes)))
        return tuple(found.get(name) for name in values)

    build.state_gradient(first, tuple(values.values()), (y,), gradient)
    return y


def _passes(build: Build, combination: Combination, name: str, x: Tensor) -> bool:
    """Return whether the gradient of a value is dy, and in its memory."""
    return x.name == build.overwritten and combination.gradients[name] == "dy"


def combined_alike(build: Build, combination: Combination, values: Sequence[Tensor]) -> Tensor:
    """Return a combination of x0, x1, ..., which have one shape."""
    flat = {f"x{i}": build.reshape(x, (x.size,)) for i, x in enumerate(values)}
    return build.reshape(combined(build, combination, flat), values[0].shape)


def scaled(build: Build, x: Tensor, factor: Tensor | None, term: Tensor | None, axis: int) -> Tensor:
    """Return x times a factor, plus a term; both lie along the axes from `axis` on, and one of them may be missing."""
    vectors = {name: vector for name, vector in (("g", factor), ("b", term)) if vector is not None}
    shape = next(iter(vectors.values())).shape
    end, size = axis + len(shape), math.prod(shape)
    view = (math.prod(x.shape[:axis]), size, math.prod(x.shape[end:]))
    along = {name: build.reshape(vector, (1, size, 1)) for name, vector in vectors.items()}
    combination = shifted() if factor is None else affine(term is not None)
    return build.reshape(combined(build, combination, {"x": build.reshape(x, view), **along}), x.shape)


def gated_sum(build: Build, gates: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x times gates, which lie along its first axes, plus y (Hu et al. 2018, "Squeeze-and-Excitation")."""
    rows = (gates.size, x.size // max(gates.size, 1))
    values = [build.reshape(gates, (gates.size, 1)), build.reshape(x, rows), build.reshape(y, rows)]
    return build.reshape(build.pointwise("y0 = x0 * x1 + x2;", values)[0], x.shape)


def compared(build: Build, x: Tensor, comparison: str, other: float | Tensor) -> Tensor:
    """Return 1 where a comparison (a function of `BINARY`, or ``not_equal``) with a number or values holds, else 0.

    A number is rounded to the type of x first.
    """
    first = build.here
    sign = "a != b" if comparison == "not_equal" else find_binary(comparison).value
    values = [x, build.cast(other, x.dtype)] if isinstance(other, Tensor) else [x]
    text = f"{renamed(sign, {'a': 'x0', 'b': 'x1' if len(values) == 2 else 'level'})} ? 1 : 0"
    scalars = {} if isinstance(other, Tensor) else {"level": float(np.dtype(x.dtype).type(other))}
    (y,) = build.pointwise(assigned("y0", text), values, scalars)
    build.state_gradient(first, tuple(values), (y,), lambda build, dys, wanted: (None,) * len(values))
    return y


def selected(build: Build, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a where a condition, which broadcasts to its shape, is not 0, and b elsewhere."""
    first = build.here
    (y,) = build.pointwise(assigned("y0", SELECTION), [condition, a, b])

    def gradient(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        assert dy is not None
        if not any(wanted[1:]):
            return (None, None, None)
        unwanted = [f"y{i}" for i in range(2) if not wanted[i + 1]]
        text = "y0 = x0 != 0 ? x1 : 0; y1 = x0 != 0 ? 0 : x1;"
        found = build.pointwise(text, [condition, dy], unwanted=unwanted)
        return (None, *(one if asked else None for one, asked in zip(found, wanted[1:])))

    build.state_gradient(first, (condition, a, b), (y,), gradient)
    return y


def rounded(build: Build, x: Tensor, function: str) -> Tensor:
    """Return whole numbers near to x, by ``floor``, ``ceil``, ``rint``, ``round`` or ``trunc``; no gradient passes."""
    first = build.here
    (y,) = build.pointwise(assigned("y0", f"{function}(x0)"), [x])
    build.state_gradient(first, (x,), (y,), lambda build, dys, wanted: (None,))
    return y
