"""The pointwise problem: assignments per element over broadcast inputs, with outputs folded over axes if wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise import derivative
from clgraft.core.operators.pointwise.expression import (
    CONSTANTS,
    FUNCTIONS,
    IDENTIFIER,
    TESTS,
    TYPES,
    Assignments,
    read_assignments,
    read_value,
)
from clgraft.core.operators.pointwise.loop import Fold
from clgraft.core.operators.pointwise.reduction import Reduction, expect, read_fold, settled
from clgraft.core.operators.pointwise.reference import evaluate
from clgraft.core.operators.pointwise.samples import intervals
from clgraft.core.problem import (
    DTYPE_WORDS,
    DTYPES,
    SMALL,
    Argument,
    Gradient,
    Problem,
    reads_as_number,
    sample_argument,
)
from clgraft.core.problem.text import dtype_word

NUMBERED = re.compile(r"[xy]\d+")
WORD = re.compile(r"((?:[^\s{]|\{[^}]*\})+)(?:\s+|$)")
SHAPE = r"\[([\d, ]*)\]"
INPUT_WORD = re.compile(r"x(\d+)" + SHAPE)
OUTPUT_WORD = re.compile(r"y(\d+)(?:" + SHAPE + r")?(?:=([a-z]+)(?:\{([^}]*)\}\{([^}]*)\})?(?:\[([-\d, ]*)\])?)?")
LABELLED = re.compile(r"(scalars|alpha|beta|f32)\{([^}]*)\}")


@dataclass(frozen=True)
class PointwiseProblem(Problem):
    """Assignments per element.

    Parameters
    ----------
    inputs : tuple of shapes
        Of x0, x1, ...; they broadcast by numpy's rules.
    expression : str
        Assignments in C over real numbers, such as ``y0 = x0; y1 = x0*x0;`` (see `expression.read_assignments`).
    reductions : tuple
        Per output a `Reduction`, or None for the whole broadcast shape; may be shorter than the outputs.
    parameters : tuple of str
        Names of the scalars that every run gives.
    alpha, beta : str
        Expressions of scalars: y = alpha * value + beta * y. With a `beta` the outputs are ``inout``.
    dtype : str
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.
    float32_arguments : tuple of str
        With 16 bits: names of inputs and outputs that are float32 all the same, such as ``("x1", "y0")``.

    Notes
    -----
    Inputs may be the memory of unfolded outputs of the same shape (in place).

    Raises
    ------
    ProblemError
        If the expression cannot be read, shapes do not broadcast, or axes are wrong.
    """

    kind: ClassVar[str] = "pointwise"
    examples: ClassVar[tuple[str, ...]] = (
        "x0[3,7,11] : y0 = x0 > 0 ? x0 : 0",
        "x0[5,33] x1[33] : y0 = x0 * x1",
        "x0[2,3,5,7] x1[2,3,5,7] : y0 = x0 + x1",
        "x0[3,5,9,13] y0=sum[0,2,3] y1=max[1] : y0 = x0; y1 = tanh(x0)",
        "f16 x0[5,33] x1[33] f32{x1,y1} : y0 = x0 * x1; y1 = x0 + x1",
    )

    inputs: tuple[tuple[int, ...], ...]
    expression: str
    reductions: tuple[Reduction | None, ...] = ()
    parameters: tuple[str, ...] = ()
    alpha: str = ""
    beta: str = ""
    dtype: str = "float32"
    float32_arguments: tuple[str, ...] = ()

    def computes(self, text: str) -> bool:
        """Return whether the one output is that of a text, without reductions, blends and arguments of other types."""
        if any(self.reductions) or self.alpha or self.beta or self.float32_arguments or self.assignments.outputs != 1:
            return False
        other = read_assignments(text, len(self.inputs), self.parameters)
        return self.assignments.meaning() == other.meaning()

    @classmethod
    def sum_of(cls, shape: Sequence[int], count: int, dtype: str) -> PointwiseProblem:
        """Return the sum of so many arrays of a shape, from left to right."""
        text = "y0 = " + " + ".join(f"x{i}" for i in range(count)) + ";"
        return cls((tuple(shape),) * count, text, dtype=dtype)

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: str = "float32") -> PointwiseProblem:
        """Return zeros in the shape of the array that is read."""
        return cls((tuple(shape),), "y0 = 0;", dtype=dtype)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("inputs", tuple(tuple(int(size) for size in shape) for shape in self.inputs))
        put("parameters", tuple(self.parameters))
        put("expression", " ".join(self.expression.split()))
        put("alpha", " ".join(self.alpha.split()))
        put("beta", " ".join(self.beta.split()))
        expect(self.dtype in DTYPES, f"dtype {self.dtype!r}", f"one of {DTYPES}")
        expect(len(self.inputs) > 0, "no inputs", "at least x0")
        for name in self.parameters:
            known = {*CONSTANTS, *FUNCTIONS, *TESTS, *TYPES, "F"}  # F is the parameter of a macro
            taken = name in known or NUMBERED.fullmatch(name) or not name.isascii() or reads_as_number(name)
            expect(
                bool(IDENTIFIER.fullmatch(name)) and not taken,
                f"the scalar name {name!r}",
                "a free C name that is no number",
            )
        expect(len(set(self.parameters)) == len(self.parameters), f"scalars {self.parameters}", "each name once")
        common, outputs = self.common_shape, self.assignments.outputs
        expect(
            len(self.reductions) <= outputs, f"{len(self.reductions)} reductions", f"at most {outputs}, one per output"
        )
        filled = tuple(settled(r, common, i) for i, r in enumerate(self.reductions))
        put("reductions", filled + (None,) * (outputs - len(filled)))
        names = [*(f"x{i}" for i in range(len(self.inputs))), *(f"y{i}" for i in range(outputs))]
        unknown = [name for name in self.float32_arguments if name not in names]
        expect(not unknown, f"float32 arguments {unknown}", f"some of {names}")
        put("float32_arguments", tuple(name for name in names if name in self.float32_arguments))
        good = self.dtype in SMALL or not self.float32_arguments
        expect(good, f"float32 arguments with {self.dtype}", f"one of {SMALL} with them")
        self.factor("alpha")
        self.factor("beta")

    @property
    def assignments(self) -> Assignments:
        """The checked expression."""
        return _program(self.expression, len(self.inputs), self.parameters)

    @property
    def common_shape(self) -> tuple[int, ...]:
        """The shape that all inputs broadcast to."""
        return broadcast_shape(self.inputs)

    def factor(self, name: str) -> str:
        """Return the C text of `alpha` or `beta`; empty where they are 1 and 0."""
        text = getattr(self, name)
        expect("{" not in text and "}" not in text, f"{name} {text!r}", "no braces")
        return read_value(text, {p: f"SPLAT(p_{p})" for p in self.parameters}, name).text if text else ""

    def fold(self, output: int) -> Fold | None:
        """Return how an output is folded; None if it is not."""
        reduction = self.reductions[output]
        return read_fold(reduction) if reduction else None

    def output_shape(self, output: int) -> tuple[int, ...]:
        """Return an output's shape."""
        reduction = self.reductions[output]
        return self.common_shape if reduction is None else reduction.shape or ()

    def type_of(self, name: str) -> str:
        """Return the dtype of an argument."""
        return "float32" if name in self.float32_arguments else self.dtype

    def arguments(self) -> tuple[Argument, ...]:
        shapes = {f"x{i}": shape for i, shape in enumerate(self.inputs)}
        inputs = tuple(Argument(name, "in", shape, self.type_of(name)) for name, shape in shapes.items())
        role = "inout" if self.beta else "out"
        shapes = {f"y{i}": self.output_shape(i) for i in range(self.assignments.outputs)}
        return inputs + tuple(Argument(name, role, shape, self.type_of(name)) for name, shape in shapes.items())

    def scalars(self) -> tuple[str, ...]:
        return self.parameters

    def part(self, count: int) -> PointwiseProblem | None:
        """Return one of so many parts along the outermost axis; None with a reduction along it."""
        first, *rest = self.common_shape or (0,)
        reductions = [reduction for reduction in self.reductions if reduction is not None]
        kept = all(r.axes and 0 not in r.axes and (r.shape or (0,))[0] == first for r in reductions)
        if not kept or self.beta or first < count or first % count:
            return None

        def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (first // count, *shape[1:])

        inputs = tuple(cut(s) if len(s) == 1 + len(rest) and s[0] == first else s for s in self.inputs)
        folds = tuple(None if r is None else replace(r, shape=cut(r.shape or ())) for r in self.reductions)
        return replace(self, inputs=inputs, reductions=folds)

    def replaced(self, output: str) -> tuple[str, ...]:
        """Return the inputs of the whole shape, where nothing is added up."""
        if any(self.reductions) or self.beta:
            return ()
        return tuple(f"x{i}" for i, shape in enumerate(self.inputs) if shape == self.common_shape)

    def gradients(self) -> tuple[Gradient, ...]:
        return derivative.gradients(self)

    @property
    def operations(self) -> int:
        """The assignments' operations for each position of the common shape; a reduction is one more."""
        folds = sum(reduction is not None for reduction in self.reductions)
        return math.prod(self.common_shape) * (self.assignments.operations + folds)

    @property
    def terms(self) -> int:
        """The most values that are reduced to one."""
        reductions = (reduction for reduction in self.reductions if reduction is not None)
        return max((math.prod(self.common_shape[axis] for axis in r.axes) for r in reductions), default=1)

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        chosen = {f"x{i}": interval for i, interval in enumerate(intervals(self))}
        given = {}
        for a in self.arguments():
            interval = chosen.get(a.name)
            if interval is not None:
                low, high = interval
                given[a.name] = rng.uniform(low, high, a.shape).astype(a.dtype)
            elif a.role != "out":
                given[a.name] = sample_argument(a, rng)
        return given

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        return evaluate(self, arrays, scalars or self.trial_scalars())

    def __str__(self) -> str:
        words = [self.kind, *dtype_word(self.dtype)]
        words += [f"x{i}[{_listed(shape)}]" for i, shape in enumerate(self.inputs)]
        for i, reduction in enumerate(self.reductions):
            if reduction is not None:
                given = f"{{{reduction.combine}}}{{{reduction.identity}}}" if reduction.operator == "fold" else ""
                words.append(
                    f"y{i}[{_listed(reduction.shape or ())}]={reduction.operator}{given}[{_listed(reduction.axes)}]"
                )
        labelled = {"scalars": ",".join(self.parameters), "alpha": self.alpha, "beta": self.beta}
        for name, text in {**labelled, "f32": ",".join(self.float32_arguments)}.items():
            if text:
                words.append(f"{name}{{{text}}}")
        return " ".join((*words, ":", self.expression))

    @classmethod
    def from_text(cls, text: str) -> PointwiseProblem:
        dtype = "float32"
        inputs: dict[int, tuple[int, ...]] = {}
        reductions: dict[int, Reduction] = {}
        labelled = {"scalars": "", "alpha": "", "beta": "", "f32": ""}
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
        expect(word == ":", repr(text), "shapes, ' : ' and an expression")
        expect(sorted(inputs) == list(range(len(inputs))), f"inputs {sorted(inputs)}", "x0, x1, ... without gaps")
        wanted, statements = max(reductions, default=-1) + 1, text[at:].count(";") + 1
        expect(wanted <= statements, f"{wanted} reductions", f"at most {statements}, one per output")
        return cls(
            inputs=tuple(inputs[i] for i in range(len(inputs))),
            expression=text[at:],
            reductions=tuple(reductions.get(i) for i in range(wanted)),
            parameters=_words(labelled["scalars"]),
            alpha=labelled["alpha"],
            beta=labelled["beta"],
            dtype=dtype,
            float32_arguments=_words(labelled["f32"]),
        )


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(str(n) for n in numbers)


def _words(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.replace(" ", "").split(",") if word)


@lru_cache(maxsize=1024)
def _program(expression: str, inputs: int, parameters: tuple[str, ...]) -> Assignments:
    return read_assignments(expression, inputs, parameters)


def broadcast_shape(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to, by numpy's rules.

    Raises
    ------
    ProblemError
        If they do not.
    """
    common: list[int] = [1] * max(len(shape) for shape in shapes)
    for number, shape in enumerate(shapes):
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            expect(size >= 0, f"x{number} of shape {shape}", "sizes of at least 0")
            if size != 1 and common[-back] not in (1, size):
                raise ProblemError(
                    f"[pointwise] got x{number} of shape {shape}, expected one that broadcasts with {shapes}"
                )
            common[-back] = size if size != 1 else common[-back]
    return tuple(common)
