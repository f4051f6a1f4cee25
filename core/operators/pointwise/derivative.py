"""Derivatives of expressions per element, by reverse accumulation over their assignments.

Assignments are first split into ones of one operation each; then every value's gradient is the sum of what its readers
pass back. So the gradient's text grows with the expression's, not with its square. At kinks the derivative is that of
the branch that was taken. Values are computed again from the inputs: the gradient reads no output of the forward
expression, except where a product or an extremum is reduced.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.operators.pointwise.expression import ALIASES, IDENTIFIER, LEVELS, TESTS, Assignments, Term, renamed
from clgraft.core.operators.pointwise.reduction import Reduction
from clgraft.core.problem import Gradient

LN10 = repr(math.log(10.0))
# function -> the factors on the result's gradient, one per argument: of the arguments a, b, c and of the value v
ZERO = "0"
FACTORS: dict[str, tuple[str, ...]] = {
    "acos": ("-1 / sqrt(1 - a * a)",),
    "acosh": ("1 / (sqrt(a - 1) * sqrt(a + 1))",),
    "acospi": ("-1 / (M_PI * sqrt(1 - a * a))",),
    "asin": ("1 / sqrt(1 - a * a)",),
    "asinh": ("1 / sqrt(a * a + 1)",),
    "asinpi": ("1 / (M_PI * sqrt(1 - a * a))",),
    "atan": ("1 / (1 + a * a)",),
    "atanh": ("1 / ((1 - a) * (1 + a))",),
    "atanpi": ("1 / (M_PI * (1 + a * a))",),
    "cbrt": ("1 / (3 * v * v)",),
    "ceil": (ZERO,),
    "cos": ("-sin(a)",),
    "cosh": ("sinh(a)",),
    "cospi": ("-M_PI * sinpi(a)",),
    "erf": ("M_2_SQRTPI * exp(-a * a)",),
    "erfc": ("-M_2_SQRTPI * exp(-a * a)",),
    "exp": ("v",),
    "exp2": ("M_LN2 * v",),
    "exp10": (f"{LN10} * v",),
    "expm1": ("v + 1",),
    "fabs": ("a > 0 ? 1 : a < 0 ? -1 : 0",),
    "floor": (ZERO,),
    "log": ("1 / a",),
    "log2": ("1 / (M_LN2 * a)",),
    "log10": (f"1 / ({LN10} * a)",),
    "log1p": ("1 / (1 + a)",),
    "rint": (ZERO,),
    "round": (ZERO,),
    "rsqrt": ("-0.5 * v / a",),
    "sign": (ZERO,),
    "sin": ("cos(a)",),
    "sinh": ("cosh(a)",),
    "sinpi": ("M_PI * cospi(a)",),
    "sqrt": ("0.5 / v",),
    "tan": ("1 + v * v",),
    "tanh": ("1 - v * v",),
    "tanpi": ("M_PI * (1 + v * v)",),
    "trunc": (ZERO,),
    "atan2": ("b / (a * a + b * b)", "-a / (a * a + b * b)"),
    "copysign": ("signbit(a) == signbit(b) ? 1 : -1", ZERO),
    "fdim": ("a > b ? 1 : 0", "a > b ? -1 : 0"),
    "fmax": ("a >= b || isnan(b) ? 1 : 0", "a >= b || isnan(b) ? 0 : 1"),
    "fmin": ("a <= b || isnan(b) ? 1 : 0", "a <= b || isnan(b) ? 0 : 1"),
    "fmod": ("1", "-trunc(a / b)"),
    "hypot": ("a / v", "b / v"),
    "maxmag": tuple(
        f"fabs(a) > fabs(b) || fabs(a) == fabs(b) && a >= b || isnan(b) ? {pair}" for pair in ("1 : 0", "0 : 1")
    ),
    "minmag": tuple(
        f"fabs(a) < fabs(b) || fabs(a) == fabs(b) && a <= b || isnan(b) ? {pair}" for pair in ("1 : 0", "0 : 1")
    ),
    "nextafter": ("1", ZERO),
    "pow": ("b == 0 ? 0 : b * pow(a, b - 1)", "v == 0 ? 0 : v * log(a)"),
    "remainder": ("1", "-rint(a / b)"),
    "step": (ZERO, ZERO),
    "clamp": ("a < b || a > c ? 0 : 1", "a < b ? 1 : 0", "a > c ? 1 : 0"),
    "fma": ("b", "a", "1"),
    "mad": ("b", "a", "1"),
    "mix": ("1 - c", "c", "b - a"),
    "smoothstep": tuple(
        f"6 * clamp((c - a) / (b - a), 0, 1) * (1 - clamp((c - a) / (b - a), 0, 1)) * {inner}"
        for inner in ("(c - b) / ((b - a) * (b - a))", "(a - c) / ((b - a) * (b - a))", "(1 / (b - a))")
    ),
}
# functions that soon are infinite: then 1 / (1 + exp(-x)) is 0, and so is what it passes back to them
GROWING = frozenset(("exp", "exp2", "exp10", "expm1"))
# relative distance within which a computed value is taken for the extremum that was stored
SAME = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-51}


@dataclass(frozen=True)
class Line:
    """One assignment ``real target = text``, and the names that it reads."""

    target: str
    text: str
    reads: frozenset[str]


@dataclass(frozen=True)
class _Entry:
    """One operation of the tape: its value's name, the operator, and the operands as names or numbers."""

    name: str
    operator: str
    operands: tuple[str, ...]


class Tape:
    """Assignments, split into ones of one operation each, and the gradients of their outputs.

    Parameters
    ----------
    assignments : Assignments
    inputs : mapping of str to str
        The names that stand for the assignments' inputs in the new text.
    prefix : str
        What no other name begins with.

    Attributes
    ----------
    lines : list of Line
        The forward values; then also the gradients.
    values : dict of str to str
        The names or numbers that the assignments' targets have in the end.
    """

    def __init__(self, assignments: Assignments, inputs: Mapping[str, str], prefix: str) -> None:
        self.prefix, self.inputs = prefix, dict(inputs)
        self.lines: list[Line] = []
        self.values: dict[str, str] = {}
        self._entries: list[_Entry] = []
        self._count = 0
        for statement in assignments.statements:
            self.values[statement.target] = self._value(statement.value)

    def assign(self, text: str, kind: str = "v") -> str:
        """Add a line with a new name and return the name."""
        name = f"{self.prefix}{kind}{self._count}"
        self._count += 1
        self.lines.append(Line(name, text, frozenset(IDENTIFIER.findall(text))))
        return name

    def _value(self, term: Term) -> str:
        """Return a name or a number for a value."""
        if term.operator == "number":
            return term.word
        if term.operator == "name":
            return self.values.get(term.word) or self.inputs.get(term.word, term.word)
        if term.operator == "real":
            return self.assign(f"{self._condition(term.operands[0])} ? 1 : 0")
        if term.operator == "?":
            test = self._condition(term.operands[0])
            atoms: tuple[str, ...] = (test, self._value(term.operands[1]), self._value(term.operands[2]))
            text = f"{test} ? {atoms[1]} : {atoms[2]}"
        else:
            atoms = tuple(self._value(operand) for operand in term.operands)
            text = _operation(term.operator, atoms)
        name = self.assign(text)
        self._entries.append(_Entry(name, ALIASES_BACK.get(term.operator, term.operator), atoms))
        return name

    def _condition(self, term: Term) -> str:
        """Return the text of a truth value, in parentheses."""
        if term.operator == "truth":
            return f"({self._value(term.operands[0])} != 0)"
        if term.operator == "!":
            return f"(!{self._condition(term.operands[0])})"
        if term.operator in ("&&", "||"):
            left, right = (self._condition(operand) for operand in term.operands)
            return f"({left} {term.operator} {right})"
        atoms = tuple(self._value(operand) for operand in term.operands)
        return _operation(term.operator, atoms) if term.operator in TESTS else f"({_operation(term.operator, atoms)})"

    def gradients(self, seeds: Mapping[str, str], wanted: Collection[str]) -> dict[str, str]:
        """Add the lines of the gradients.

        Parameters
        ----------
        seeds : mapping of str to str
            The gradients of some targets, as text.
        wanted : collection of str
            Names of inputs, as they are called in the new text.

        Returns
        -------
        dict of str to str
            The text of each wanted input's gradient; those that are always 0 are missing.
        """
        # value -> what its readers pass back, and whether that stands under a condition
        passed: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        for target, seed in seeds.items():
            passed[self.values[target]].append((seed, False))
        active = self._active(wanted)
        for entry in reversed(self._entries):
            terms = passed.pop(entry.name, [])
            if not terms or entry.name not in active:
                continue
            total = " + ".join(text for text, _ in terms)
            gradient = total if IDENTIFIER.fullmatch(total) else self.assign(total, "g")
            chosen = all(under for _, under in terms)
            for operand, text in zip(entry.operands, _passed_back(entry, gradient, chosen)):
                if operand in active and text:
                    passed[operand].append((text, chosen or entry.operator == "?"))
        return {name: " + ".join(text for text, _ in passed[name]) for name in wanted if passed[name]}

    def _active(self, wanted: Collection[str]) -> set[str]:
        """Return the values that depend on the wanted inputs."""
        active = set(wanted)
        for entry in self._entries:
            operands = entry.operands[1:] if entry.operator == "?" else entry.operands
            if active.intersection(operands):
                active.add(entry.name)
        return active


ALIASES_BACK = {alias: name for alias, name in ALIASES.items() if name.islower()}  # abs, max and min
BINARY = frozenset(sign for level in LEVELS for sign in level)


def _operation(operator: str, atoms: tuple[str, ...]) -> str:
    if operator == "-" and len(atoms) == 1:
        return f"-{atoms[0]}"
    if operator in BINARY:
        return f"{atoms[0]} {operator} {atoms[1]}"
    return f"{operator}({', '.join(atoms)})"


def _passed_back(entry: _Entry, gradient: str, chosen: bool) -> tuple[str, ...]:
    """Return what an operation adds to the gradient of each operand, as text; empty where that is 0."""
    operator, atoms = entry.operator, entry.operands
    if operator == "?":
        return "", f"({atoms[0]} ? {gradient} : 0)", f"({atoms[0]} ? 0 : {gradient})"
    if operator == "+":
        return gradient, gradient
    if operator == "-":
        return (f"-{gradient}",) if len(atoms) == 1 else (gradient, f"-{gradient}")
    if operator == "*":
        factors: tuple[str, ...] = ("b", "a")
    elif operator == "/":
        factors = ("1 / b", "-v / b")
    elif operator in FACTORS:
        factors = FACTORS[operator]
    else:
        raise ProblemError(f"[pointwise] got the function {operator!r}, expected one whose derivative is known")
    names = {**dict(zip("abc", atoms)), "v": entry.name}
    return tuple(_times(gradient, factor, names, chosen or operator in GROWING) for factor in factors)


def _times(gradient: str, factor: str, names: Mapping[str, str], guarded: bool) -> str:
    """Return a gradient times a factor; `guarded` where the factor may be infinite, but the gradient is 0 then."""
    if factor == ZERO:
        return ""
    if factor == "1":
        return gradient
    written = renamed(factor, names)
    if written.startswith("1 / "):
        product = f"{gradient} / {written[4:]}"
    elif IDENTIFIER.fullmatch(written):
        product = f"{gradient} * {written}"
    else:
        product = f"{gradient} * ({written})"
    return f"({gradient} == 0 ? 0 : {product})" if guarded else product


def needed(lines: list[Line], results: Mapping[str, str]) -> list[Line]:
    """Return the lines that some results need, in order; `results` are texts by any key."""
    wanted = {name for text in results.values() for name in IDENTIFIER.findall(text)}
    kept = []
    for line in reversed(lines):
        if line.target in wanted:
            kept.append(line)
            wanted |= line.reads
    return kept[::-1]


def free_prefix(names: Collection[str]) -> str:
    """Return a prefix that keeps generated names apart from the given ones."""
    prefix = ""
    while any(name.startswith(tuple(prefix + letter for letter in "vgdi")) for name in names):
        prefix += "k"
    return prefix


def gradient_expression(assignments: Assignments, inputs: int, scalars: Collection[str] = ()) -> str:
    """Return the gradients of assignments that reduce nothing, as assignments themselves.

    Parameters
    ----------
    assignments : Assignments
    inputs : int
        The number of its inputs.
    scalars : collection of str
        Names of its scalars.

    Returns
    -------
    str
        Assignments to dx0, dx1, ... that read x0, x1, ... and dy0, dy1, ...
    """
    names = [f"x{i}" for i in range(inputs)]
    tape = Tape(assignments, {name: name for name in names}, free_prefix(scalars))
    found = tape.gradients({f"y{i}": f"dy{i}" for i in range(assignments.outputs)}, names)
    lines = [f"real {line.target} = {line.text};" for line in needed(tape.lines, found)]
    return " ".join([*lines, *(f"d{name} = {found.get(name, '0')};" for name in names)])


def gradients(problem: Any) -> tuple[Gradient, ...]:
    """Return the gradient problems of a pointwise problem (see `Problem.gradients`).

    The gradient of an input that is broadcast is summed to the input's shape. A maximum's or minimum's gradient goes to
    all elements that are equal to it.

    Raises
    ------
    ProblemError
        If it uses a function without a known derivative, or an output has a reduction of its own (``fold``).
    """
    return _Differentiator(problem).gradients()


class _Differentiator:
    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.common = problem.common_shape
        self.prefix = free_prefix(problem.parameters)
        self.shapes: dict[str, tuple[int, ...]] = {}  # symbolic name -> shape, over the axes of the common shape
        inputs = {f"x{i}": self._load(f"x{i}", shape) for i, shape in enumerate(problem.inputs)}
        self.tape = Tape(problem.assignments, inputs, self.prefix)
        self.before: list[Gradient] = []

    def _load(self, symbol: str, shape: tuple[int, ...]) -> str:
        """Let a value be an input of the gradient problems, and return its name in the text."""
        self.shapes[symbol] = shape
        return self._name(symbol)

    def _name(self, symbol: str) -> str:
        return f"{self.prefix}in_{symbol.lstrip('_')}"

    def gradients(self) -> tuple[Gradient, ...]:
        problem = self.problem
        seeds = {f"y{i}": self._seed(i) for i in range(problem.assignments.outputs)}
        names = {self.tape.inputs[f"x{i}"]: i for i in range(len(problem.inputs))}
        found = {names[name]: text for name, text in self.tape.gradients(seeds, list(names)).items()}
        steps = list(self.before)
        if found:
            outputs = {f"dx{i}": (text, _summed(problem.inputs[i], self.common)) for i, text in sorted(found.items())}
            steps.append(self._gradient(outputs))
        if problem.beta:  # the outputs' old values; last, because these gradients take the place of the new ones
            steps += [self._of_old_value(i) for i in range(problem.assignments.outputs)]
        return tuple(steps)

    def _seed(self, output: int) -> str:
        """Return the text of the gradient of an output's value before it is reduced."""
        reduction, problem = self.problem.reductions[output], self.problem
        shape = self.problem.output_shape(output)
        if reduction is not None:
            shape = tuple(1 if axis in reduction.axes else size for axis, size in enumerate(self.common))
        dy = self._load(f"dy{output}", shape)
        if problem.alpha:
            dy = self.tape.assign(f"{dy} * ({problem.alpha})", "d")
        if reduction is None or reduction.operator == "sum":
            return dy
        value = self.tape.values[f"y{output}"]
        if reduction.operator == "prod":
            return self._of_product(output, dy, value, shape)
        if reduction.operator in ("max", "min"):
            return self._of_extremum(output, dy, value, shape)
        raise ProblemError(f"[pointwise] got the reduction 'fold' of y{output}, expected sum, prod, max or min")

    def _of_product(self, output: int, dy: str, value: str, shape: tuple[int, ...]) -> str:
        """Return the product of the other factors times dy; the factors that are 0 are counted in a step before."""
        product, zeros = f"_prod{output}", f"_zeros{output}"
        fold = replace(self.problem.reductions[output], axes=(), shape=shape)
        results = {
            product: (f"{value} == 0 ? 1 : {value}", fold),
            zeros: (f"{value} == 0 ? 1 : 0", replace(fold, operator="sum")),
        }
        self.before.append(self._gradient(results))
        p, z = self._load(product, shape), self._load(zeros, shape)
        return self.tape.assign(f"{dy} * ({value} == 0 ? ({z} == 1 ? {p} : 0) : {z} == 0 ? {p} / {value} : 0)", "d")

    def _of_extremum(self, output: int, dy: str, value: str, shape: tuple[int, ...]) -> str:
        """Return dy where the value is the extremum; a step before finds that again, free of alpha and beta."""
        extremum = f"_extremum{output}"
        fold = replace(self.problem.reductions[output], axes=(), shape=shape)
        self.before.append(self._gradient({extremum: (value, fold)}))
        top = self._load(extremum, shape)
        same = f"{value} == {top}"
        if value not in self.tape.inputs.values():  # computed twice, and rounded when it was stored
            same += f" || fabs({value} - {top}) <= {SAME[self._type_of(extremum)]!r} * fabs({top})"
        return self.tape.assign(f"{same} ? {dy} : 0", "d")

    def _gradient(self, results: Mapping[str, tuple[str, Any]]) -> Gradient:
        """Return a step that computes texts: symbolic name -> (text, reduction)."""
        texts = {symbol: text for symbol, (text, _) in results.items()}
        lines = needed(self.tape.lines, texts)
        read = frozenset().union(*(line.reads for line in lines), *(IDENTIFIER.findall(t) for t in texts.values()))
        symbols = [symbol for symbol in self.shapes if self._name(symbol) in read]
        symbols = self._spanning(sorted(symbols, key=lambda symbol: (symbol[:2] != "dy", symbol[:1] == "_")))
        loads = [f"real {self._name(s)} = x{i};" for i, s in enumerate(symbols) if self._name(s) in read]
        body = [f"real {line.target} = {line.text};" for line in lines]
        stores = [f"y{i} = {text};" for i, text in enumerate(texts.values())]
        problem = type(self.problem)(
            inputs=tuple(self.shapes[symbol] for symbol in symbols),
            expression=" ".join(loads + body + stores),
            reductions=tuple(reduction for _, reduction in results.values()),
            parameters=tuple(name for name in self.problem.parameters if name in read),
        )
        arguments = {f"x{i}": symbol for i, symbol in enumerate(symbols)}
        arguments.update({f"y{i}": symbol for i, symbol in enumerate(texts)})
        return Gradient.of(self._typed(problem, arguments), arguments)

    def _type_of(self, symbol: str) -> str:
        """Return the dtype of a value, or of its gradient; what passes between two steps is float32 in mixed types."""
        if symbol.startswith("_"):
            return "float32" if self.problem.float32_arguments else str(self.problem.dtype)
        return str(self.problem.type_of(symbol[1:] if symbol.startswith("d") else symbol))

    def _typed(self, problem: Any, symbols: Mapping[str, str]) -> Any:
        """Return a gradient problem whose arguments have the dtypes of what they stand for."""
        dtype = self.problem.dtype
        wide = tuple(name for name, symbol in symbols.items() if self._type_of(symbol) != dtype)
        if len(wide) == len(symbols):
            return replace(problem, dtype="float32")
        return replace(problem, dtype=dtype, float32_arguments=wide)

    def _spanning(self, symbols: list[str]) -> list[str]:
        """Return symbols and, if they do not span the common shape, inputs for the shape's sake alone."""
        for symbol in (f"x{i}" for i in range(len(self.problem.inputs))):
            spanned = [1] * len(self.common)
            for shape in (self.shapes[s] for s in symbols):
                for back, size in enumerate(reversed(shape), 1):
                    spanned[-back] = size if size != 1 else spanned[-back]
            if tuple(spanned) == self.common and symbols:
                break
            if symbol not in symbols:
                symbols = [*symbols, symbol]
        return symbols

    def _of_old_value(self, output: int) -> Gradient:
        shape, name = self.problem.output_shape(output), f"dy{output}"
        beta = self.problem.beta
        problem = type(self.problem)(
            inputs=(shape,),
            expression=f"y0 = x0 * ({beta});",
            parameters=tuple(p for p in self.problem.parameters if p in IDENTIFIER.findall(beta)),
        )
        symbols = {"x0": name, "y0": name}
        return Gradient.of(self._typed(problem, symbols), symbols)


def _summed(shape: tuple[int, ...], common: tuple[int, ...]) -> Any:
    """Return the reduction of an input's gradient, or None where it is not broadcast."""
    return None if shape == common else Reduction("sum", shape=shape)
