"""The pointwise problem: a program per element over broadcast inputs, with outputs folded over axes if wanted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise.expression import (
    CONSTANTS,
    FUNCTIONS,
    TESTS,
    TYPES,
    Node,
    Program,
    literal,
    read_program,
    read_value,
)
from clgraft.core.operators.pointwise.loop import Fold
from clgraft.core.problem import DTYPE_WORDS, DTYPES, WORD_OF_DTYPE, Argument, Problem

NAMED_FOLDS = {
    "sum": ("a + b", "0"),
    "prod": ("a * b", "1"),
    # a comparison with NaN is false: both keep a NaN, as numpy's do
    "max": ("a > b || isnan(a) ? a : b", "-INFINITY"),
    "min": ("a < b || isnan(a) ? a : b", "INFINITY"),
}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
NUMBERED = re.compile(r"[xy]\d+")
WORD = re.compile(r"((?:[^\s{]|\{[^}]*\})+)(?:\s+|$)")
SHAPE = r"\[([\d, ]*)\]"
INPUT_WORD = re.compile(r"x(\d+)" + SHAPE)
OUTPUT_WORD = re.compile(r"y(\d+)(?:" + SHAPE + r")?(?:=([a-z]+)(?:\{([^}]*)\}\{([^}]*)\})?(?:\[([-\d, ]*)\])?)?")
LABELLED = re.compile(r"(scalars|alpha|beta)\{([^}]*)\}")


@dataclass(frozen=True)
class Reduction:
    """How one output is folded.

    Parameters
    ----------
    operator : str
        ``sum``, ``prod``, ``max``, ``min``, or ``fold`` for the given `combine`.
    axes : tuple of int
        The axes of the broadcast shape that are folded and left out of the output; negative ones count from the end.
        If empty, they follow from `shape`.
    shape : tuple of int, optional
        The output's shape. With `axes` it only has to have the right number of elements; without, it has to broadcast
        to the common shape, and every axis that it lacks or has as 1 is folded (as the gradient of broadcasting needs).
    combine, identity : str
        For ``fold``: an expression of ``a`` and ``b``, associative and commutative, and its neutral element.
    """

    operator: str = "sum"
    axes: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None
    combine: str = ""
    identity: str = ""


@dataclass(frozen=True)
class PointwiseProblem(Problem):
    """A program per element.

    Parameters
    ----------
    inputs : tuple of shapes
        Of x0, x1, ...; they broadcast by numpy's rules.
    expression : str
        Assignments in C over real numbers, such as ``y0 = x0; y1 = x0*x0;`` (see `expression.read_program`).
    reductions : tuple
        Per output a `Reduction`, or None for the whole broadcast shape; may be shorter than the outputs.
    parameters : tuple of str
        Names of the scalars that every run gives.
    alpha, beta : str
        Expressions of scalars: y = alpha * value + beta * y. With a `beta` the outputs are ``inout``.
    dtype : str
        ``float32``, ``float16`` (storage) or ``float64``.

    Notes
    -----
    Inputs may be the memory of unfolded outputs of the same shape (in place).

    Raises
    ------
    ProblemError
        If the expression cannot be read, shapes do not broadcast, or axes are wrong.
    """

    kind: ClassVar[str] = "pointwise"

    inputs: tuple[tuple[int, ...], ...]
    expression: str
    reductions: tuple[Reduction | None, ...] = ()
    parameters: tuple[str, ...] = ()
    alpha: str = ""
    beta: str = ""
    dtype: str = "float32"

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("inputs", tuple(tuple(int(size) for size in shape) for shape in self.inputs))
        put("parameters", tuple(self.parameters))
        put("expression", " ".join(self.expression.split()))
        put("alpha", " ".join(self.alpha.split()))
        put("beta", " ".join(self.beta.split()))
        _expect(self.dtype in DTYPES, f"dtype {self.dtype!r}", f"one of {DTYPES}")
        _expect(len(self.inputs) > 0, "no inputs", "at least x0")
        for name in self.parameters:
            taken = name in CONSTANTS or name in FUNCTIONS or name in TESTS or name in TYPES or NUMBERED.fullmatch(name)
            _expect(bool(IDENTIFIER.fullmatch(name)) and not taken, f"the scalar name {name!r}", "a free C name")
        _expect(len(set(self.parameters)) == len(self.parameters), f"scalars {self.parameters}", "each name once")
        common, outputs = self.common_shape, self.program.outputs
        _expect(
            len(self.reductions) <= outputs, f"{len(self.reductions)} reductions", f"at most {outputs}, one per output"
        )
        filled = tuple(_settled(r, common, i) for i, r in enumerate(self.reductions))
        put("reductions", filled + (None,) * (outputs - len(filled)))
        self.factor("alpha")
        self.factor("beta")

    @property
    def program(self) -> Program:
        """The checked expression."""
        return _program(self.expression, len(self.inputs), self.parameters)

    @property
    def common_shape(self) -> tuple[int, ...]:
        """The shape that all inputs broadcast to."""
        return broadcast_shape(self.inputs)

    def factor(self, name: str) -> str:
        """Give the C text of `alpha` or `beta`; empty where they are 1 and 0."""
        text = getattr(self, name)
        _expect("{" not in text and "}" not in text, f"{name} {text!r}", "no braces")
        return read_value(text, {p: f"SPLAT(p_{p})" for p in self.parameters}, name).text if text else ""

    def fold(self, output: int) -> Fold | None:
        """Give how an output is folded; None if it is not."""
        reduction = self.reductions[output]
        return read_fold(reduction) if reduction else None

    def output_shape(self, output: int) -> tuple[int, ...]:
        """Give an output's shape."""
        reduction = self.reductions[output]
        return self.common_shape if reduction is None else reduction.shape or ()

    def arguments(self) -> tuple[Argument, ...]:
        inputs = tuple(Argument(f"x{i}", "in", shape, self.dtype) for i, shape in enumerate(self.inputs))
        role = "inout" if self.beta else "out"
        outputs = range(self.program.outputs)
        return inputs + tuple(Argument(f"y{i}", role, self.output_shape(i), self.dtype) for i in outputs)

    def scalars(self) -> tuple[str, ...]:
        return self.parameters

    def __str__(self) -> str:
        words = [self.kind]
        if self.dtype != "float32":
            words.append(WORD_OF_DTYPE[self.dtype])
        words += [f"x{i}[{_listed(shape)}]" for i, shape in enumerate(self.inputs)]
        for i, reduction in enumerate(self.reductions):
            if reduction is not None:
                given = f"{{{reduction.combine}}}{{{reduction.identity}}}" if reduction.operator == "fold" else ""
                words.append(
                    f"y{i}[{_listed(reduction.shape or ())}]={reduction.operator}{given}[{_listed(reduction.axes)}]"
                )
        for name, text in (("scalars", ",".join(self.parameters)), ("alpha", self.alpha), ("beta", self.beta)):
            if text:
                words.append(f"{name}{{{text}}}")
        return " ".join((*words, ":", self.expression))

    @classmethod
    def from_text(cls, text: str) -> PointwiseProblem:
        dtype = "float32"
        inputs: dict[int, tuple[int, ...]] = {}
        reductions: dict[int, Reduction] = {}
        labelled = {"scalars": "", "alpha": "", "beta": ""}
        at, text, word = 0, text.strip(), ""
        while at < len(text):
            found = WORD.match(text, at)
            if not found:
                raise ProblemError(f"[pointwise] got {text[at:]!r}, expected every brace closed")
            at, word = found.end(), found[1]
            if word == ":":
                break
            x, y, label = INPUT_WORD.fullmatch(word), OUTPUT_WORD.fullmatch(word), LABELLED.fullmatch(word)
            if word in DTYPE_WORDS:
                dtype = DTYPE_WORDS[word]
            elif x and int(x[1]) not in inputs:
                inputs[int(x[1])] = _numbers(x[2])
            elif y and int(y[1]) not in reductions and y[3]:
                shape = None if y[2] is None else _numbers(y[2])
                reductions[int(y[1])] = Reduction(y[3], _numbers(y[6] or ""), shape, y[4] or "", y[5] or "")
            elif label and not labelled[label[1]]:
                labelled[label[1]] = label[2]
            else:
                expected = "f16, f64, x0[8,3], y0=sum[0,1], y0[3]=sum, scalars{a}, alpha{a} or beta{1}, each once"
                raise ProblemError(f"[pointwise] got word {word!r}, expected {expected}")
        _expect(word == ":", repr(text), "shapes, ' : ' and an expression")
        _expect(sorted(inputs) == list(range(len(inputs))), f"inputs {sorted(inputs)}", "x0, x1, ... without gaps")
        return cls(
            inputs=tuple(inputs[i] for i in range(len(inputs))),
            expression=text[at:],
            reductions=tuple(reductions.get(i) for i in range(max(reductions, default=-1) + 1)),
            parameters=tuple(name.strip() for name in labelled["scalars"].split(",") if name.strip()),
            alpha=labelled["alpha"],
            beta=labelled["beta"],
            dtype=dtype,
        )


def _expect(good: bool, got: str, expected: str) -> None:
    if not good:
        raise ProblemError(f"[pointwise] got {got}, expected {expected}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(n) for n in numbers)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.replace(" ", "").split(",") if word)


@lru_cache(maxsize=1024)
def _program(expression: str, inputs: int, parameters: tuple[str, ...]) -> Program:
    return read_program(expression, inputs, parameters)


def broadcast_shape(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Give the shape that shapes broadcast to, by numpy's rules.

    Raises
    ------
    ProblemError
        If they do not.
    """
    common: list[int] = [1] * max(len(shape) for shape in shapes)
    for number, shape in enumerate(shapes):
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            _expect(size >= 0, f"x{number} of shape {shape}", "sizes of at least 0")
            if size != 1 and common[-back] not in (1, size):
                raise ProblemError(
                    f"[pointwise] got x{number} of shape {shape}, expected one that broadcasts with {shapes}"
                )
            common[-back] = size if size != 1 else common[-back]
    return tuple(common)


def read_fold(reduction: Reduction) -> Fold:
    """Give a reduction's fold as C text.

    Raises
    ------
    ProblemError
        If its operator is unknown or its expressions cannot be read.
    """
    combine, identity = NAMED_FOLDS.get(reduction.operator, (reduction.combine, reduction.identity))
    named = reduction.operator in NAMED_FOLDS
    _expect(
        named or reduction.operator == "fold", f"reduction {reduction.operator!r}", f"{sorted(NAMED_FOLDS)} or 'fold'"
    )
    _expect(named or bool(combine and identity), "reduction 'fold' without its expressions", "combine and identity")
    node = read_value(combine, {"a": "(a)", "b": "(b)"}, "combine")
    _expect({"a", "b"} <= node.reads, f"combine {combine!r}", "an expression of both a and b")
    return Fold(node, read_value(identity, {}, "identity") if identity != "0" else Node(literal(0.0)))


def _settled(reduction: Reduction | None, common: tuple[int, ...], output: int) -> Reduction | None:
    """Give the same reduction with axes ascending and a shape, or None if it folds nothing."""
    if reduction is None:
        return None
    read_fold(reduction)
    for text in (reduction.combine, reduction.identity):
        _expect("{" not in text and "}" not in text, f"reduction of y{output} with {text!r}", "no braces")
    ndim, axes, shape = len(common), reduction.axes, reduction.shape
    if axes:
        good = all(-ndim <= a < ndim for a in axes) and len({a % ndim for a in axes}) == len(axes)
        _expect(good, f"axes {axes} of y{output}", f"different axes of {common}")
        axes = tuple(sorted(a % ndim for a in axes))
        left = tuple(size for axis, size in enumerate(common) if axis not in axes)
        shape = left if shape is None else tuple(int(size) for size in shape)
        _expect(math.prod(shape) == math.prod(left), f"y{output} of shape {shape}", f"as many elements as {left}")
    elif shape is None:
        axes, shape = tuple(range(ndim)), ()
    else:
        shape = tuple(int(size) for size in shape)
        full = (1,) * (ndim - len(shape)) + shape
        good = len(full) == ndim and all(size in (1, whole) for size, whole in zip(full, common))
        _expect(good, f"y{output} of shape {shape}", f"a shape that broadcasts to {common}")
        axes = tuple(axis for axis in range(ndim) if full[axis] == 1 and common[axis] != 1)
        if not axes and shape == common:
            return None
    return Reduction(
        reduction.operator, axes, shape, " ".join(reduction.combine.split()), " ".join(reduction.identity.split())
    )
