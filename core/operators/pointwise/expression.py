"""Expressions per element: read, checked, and written again as OpenCL C that works on scalars and on vectors alike.

An expression is a list of C assignments over real numbers, such as ``real t = x0 - m; y0 = t > 0 ? t : 0;``. OpenCL's
vectors do not follow scalar C (a comparison gives -1, a condition looks at the top bit, literals do not widen), so the
text is not pasted into kernels: it is parsed, and written with the macros of kernels/pointwise/value.cl.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.problem.base import shortened

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)[fFlL]?(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|==|!=|&&|\|\||[-+*/]=|[-+*/()<>!?:,;=]))"
)
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
LOCAL = re.compile(r"\bt_\w+")  # as `local_name` writes it
TYPES = ("real", "float", "double")
CONSTANTS = {
    "M_PI": math.pi,
    "M_E": math.e,
    "M_SQRT2": math.sqrt(2.0),
    "M_SQRT1_2": math.sqrt(0.5),
    "M_2_SQRTPI": 2.0 / math.sqrt(math.pi),
    "M_LN2": math.log(2.0),
    "INFINITY": math.inf,
    "NAN": math.nan,
}
_ONE = """acos acosh acospi asin asinh asinpi atan atanh atanpi cbrt ceil cos cosh cospi erf erfc exp exp2 exp10 expm1
fabs floor lgamma log log2 log10 log1p rint round rsqrt sign sin sinh sinpi sqrt tan tanh tanpi tgamma trunc"""
_TWO = "atan2 copysign fdim fmax fmin fmod hypot maxmag minmag nextafter pow remainder step"
_THREE = "clamp fma mad mix smoothstep"
# name -> number of arguments; kernels call them by the same name but for ALIASES
FUNCTIONS = {name: count for count, names in enumerate((_ONE, _TWO, _THREE), 1) for name in names.split()}
ALIASES = {"abs": "fabs", "max": "fmax", "min": "fmin"}
FUNCTIONS.update({alias: FUNCTIONS[name] for alias, name in ALIASES.items()})
ALIASES.update({name: name.upper() for name in ("erf", "erfc", "expm1", "log1p", "tanh")})  # kernels/pointwise/math.cl
TESTS = ("isnan", "isinf", "isfinite", "signbit")

# what compilers of OpenCL take: longer ones crash some of them
MOST_CHARACTERS = 100_000
MOST_OPERATIONS = 2000
MOST_DEPTH = 200  # operations nested in each other at most; compilers limit brackets
MOST_NESTED = 40  # parentheses, functions and conditions in each other

LEVELS: tuple[tuple[str, ...], ...] = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/"))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a formula in which names are replaced by others, or by numbers and formulas in parentheses."""
    return IDENTIFIER.sub(lambda found: names.get(found[0], found[0]), text)


@dataclass(frozen=True)
class Term:
    """A value: its C text, whether it is a truth value, the names that it reads, and what it is made of.

    Attributes
    ----------
    text : str
    truth : bool
    reads : frozenset of str
    operator : str
        ``name`` and ``number`` have no operands; ``?`` has three; ``real`` is a truth value as 0 or 1, ``truth``
        whether a number is not 0; other signs and functions are called as in the text; a negation has one operand.
    operands : tuple of Term
    word : str
        The name, or the number as text.
    """

    text: str
    truth: bool = False
    reads: frozenset[str] = frozenset()
    operator: str = "number"
    operands: tuple[Term, ...] = ()
    word: str = ""
    depth: int = field(default=0, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((operand.depth for operand in self.operands), default=0))


@dataclass(frozen=True)
class Statement:
    """An assignment to an output or to a local name."""

    target: str
    value: Term


@dataclass
class _Reader:
    """Recursive descent over the tokens of one text."""

    text: str
    names: dict[str, str]  # what may be read -> its C text
    what: str
    tokens: list[tuple[str, str]] = field(default_factory=list)
    place: int = 0
    nested: int = 0

    def __post_init__(self) -> None:
        at, text = 0, self.text.rstrip()
        if not text.isascii():
            raise self.error("other characters", "only ASCII characters")
        if len(text) > MOST_CHARACTERS:
            raise self.error(f"{len(text)} characters", f"at most {MOST_CHARACTERS}")
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                rest = text[at:].strip()
                raise self.error(f"{rest[:20]!r}", "numbers, names, + - * / < > = ! && || ?: and parentheses")
            kind = found.lastgroup or ""
            self.tokens.append((kind, found[kind]))
            at = found.end()

    def error(self, got: str, expected: str) -> ProblemError:
        return ProblemError(f"[pointwise] got {got} in {self.what} {shortened(self.text)}, expected {expected}")

    def peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        if self.place == len(self.tokens):
            raise self.error("its end", "more: a value is missing or a parenthesis is open")
        self.place += 1
        return self.tokens[self.place - 1]

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.error(repr(self.peek()) if self.peek() else "its end", repr(sign))
        self.place += 1

    def accept(self, sign: str) -> bool:
        if self.peek() != sign:
            return False
        self.place += 1
        return True

    def deeper(self, read: Callable[[], Term]) -> Term:
        """Read what stands inside of something else."""
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise self.error("deeper parentheses, signs and conditions", f"at most {MOST_NESTED} in each other")
        term = read()
        self.nested -= 1
        return term

    def value(self) -> Term:
        term = self.deeper(self.conditional)
        if term.depth > MOST_DEPTH:
            raise self.error(f"{term.depth} operations in each other", f"at most {MOST_DEPTH}: assign parts to names")
        return term

    def conditional(self) -> Term:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = number(self.value())
        self.expect(":")
        no = number(self.value())
        test = truth(condition)
        reads = test.reads | yes.reads | no.reads
        return Term(f"PICK({test.text}, {yes.text}, {no.text})", False, reads, "?", (test, yes, no))

    def binary(self, level: int) -> Term:
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            sign = self.take()[1]
            right = self.binary(level + 1)
            logical = sign in ("&&", "||")
            left, right = (truth(left), truth(right)) if logical else (number(left), number(right))
            reads = left.reads | right.reads
            if logical:
                text = f"{'BOTH' if sign == '&&' else 'EITHER'}({left.text}, {right.text})"
                left = Term(text, True, reads, sign, (left, right))
            else:
                left = Term(f"({left.text} {sign} {right.text})", sign not in "+-*/", reads, sign, (left, right))
        return left

    def unary(self) -> Term:
        if self.accept("!"):
            inner = truth(self.deeper(self.unary))
            return Term(f"NOT({inner.text})", True, inner.reads, "!", (inner,))
        if self.accept("-"):
            inner = number(self.deeper(self.unary))
            return Term(f"(-{inner.text})", False, inner.reads, "-", (inner,))
        if self.accept("+"):
            return number(self.deeper(self.unary))
        return self.primary()

    def primary(self) -> Term:
        kind, text = self.take()
        if kind == "number":
            return Term(literal(float(text)), word=text)
        if text == "(":
            if self.peek() in TYPES and self.tokens[self.place + 1 : self.place + 2] == [("sign", ")")]:
                self.place += 2  # a cast between real types says nothing here
                return number(self.deeper(self.unary))
            inner = self.value()
            self.expect(")")
            return inner
        if kind == "name" and self.peek() == "(":
            return self.call(text)
        if kind == "name" and text in self.names:
            return Term(self.names[text], False, frozenset((text,)), "name", (), text)
        if kind == "name" and text in CONSTANTS:
            return Term(literal(CONSTANTS[text]), word=text)
        if kind == "name":
            raise self.error(f"the name {text!r}", f"one of {sorted(self.names)} or a constant of {sorted(CONSTANTS)}")
        raise self.error(repr(text), "a value")

    def call(self, name: str) -> Term:
        arguments = []
        self.expect("(")
        if not self.accept(")"):
            arguments.append(number(self.value()))
            while self.accept(","):
                arguments.append(number(self.value()))
            self.expect(")")
        if name not in FUNCTIONS and name not in TESTS:
            raise self.error(f"the function {name!r}", f"one of {sorted((*FUNCTIONS, *TESTS))}")
        count = FUNCTIONS.get(name, 1)
        if len(arguments) != count:
            raise self.error(f"{len(arguments)} arguments of {name}", f"{count}")
        reads = frozenset().union(*(a.reads for a in arguments))
        inside = ", ".join(a.text for a in arguments)
        if name in TESTS:
            return Term(f"TRUTH({name}({inside}))", True, reads, name, tuple(arguments))
        return Term(f"{ALIASES.get(name, name)}({inside})", False, reads, name, tuple(arguments))


def literal(value: float) -> str:
    """Write a number as a value of the kernel's type."""
    if math.isnan(value):
        return "SPLAT(NAN)"
    if math.isinf(value):
        return "SPLAT(INFINITY)" if value > 0 else "SPLAT(-INFINITY)"
    text = repr(float(value))
    return f"SPLAT(REAL({text}))" if value >= 0 else f"(-SPLAT(REAL({text[1:]})))"


def number(term: Term) -> Term:
    """Return a truth value as 0 or 1, a number as it is."""
    return Term(f"NUMBER({term.text})", False, term.reads, "real", (term,)) if term.truth else term


def truth(term: Term) -> Term:
    """Return whether a number is not 0, a truth value as it is."""
    return term if term.truth else Term(f"({term.text} != SPLAT(REAL(0.0)))", True, term.reads, "truth", (term,))


def read_value(text: str, names: dict[str, str], what: str) -> Term:
    """Read one expression.

    Parameters
    ----------
    text : str
    names : dict
        Names that may be read, with their C text.
    what : str
        How errors call the text.

    Raises
    ------
    ProblemError
        If it is no expression over these names.
    """
    reader = _Reader(text, names, what)
    term = number(reader.value())
    if reader.peek():
        raise reader.error(repr(reader.peek()), "its end")
    return term


@dataclass(frozen=True)
class Assignments:
    """Checked assignments.

    Attributes
    ----------
    statements : tuple of Statement
    outputs : int
        The number of outputs y0, y1, ...
    """

    statements: tuple[Statement, ...]
    outputs: int

    @property
    def operations(self) -> int:
        """How many operations there are: signs, functions and conditions."""
        terms, count = [statement.value for statement in self.statements], 0
        while terms:
            term = terms.pop()
            terms += term.operands
            count += bool(term.operands) and term.operator not in ("real", "truth")
        return count

    def part(self, outputs: tuple[int, ...]) -> tuple[Statement, ...]:
        """Return the statements that these outputs need, in order."""
        needed = {f"y{i}" for i in outputs}
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if statement.target in needed:
                kept.append(statement)
                needed |= statement.value.reads
        return tuple(reversed(kept))

    def c_text(self, outputs: tuple[int, ...]) -> str:
        """Write the statements that these outputs need; the kernel itself declares these outputs."""
        declared = {f"y{i}" for i in outputs}
        words = []
        for s in self.part(outputs):
            kind = "" if s.target in declared else "VALUE "
            declared.add(s.target)
            words.append(f"{kind}{local_name(s.target)} = {s.value.text};")
        return " ".join(words)

    def meaning(self) -> str:
        """Write what the outputs need, without local names that only stand for other ones that are assigned once."""
        statements = self.part(tuple(range(self.outputs)))
        times = Counter(s.target for s in statements)
        stand: dict[str, str] = {}  # in C text: local names, and what they stand for
        words = []
        for s in statements:
            target, text = local_name(s.target), LOCAL.sub(lambda found: stand.get(found[0], found[0]), s.value.text)
            fixed = s.value.operator == "name" and times[s.value.word] <= 1  # inputs and scalars are not assigned
            if fixed and times[s.target] == 1 and not is_output(s.target):
                stand[target] = text
            else:
                words.append(f"{target} = {text};")
        return " ".join(words)

    def reads(self, outputs: tuple[int, ...]) -> frozenset[str]:
        """Return every name that these outputs need."""
        return frozenset().union(*(s.value.reads for s in self.part(outputs)))


def is_output(name: str) -> bool:
    """Return whether a name is one of y0, y1, ..."""
    return re.fullmatch(r"y(0|[1-9]\d*)", name) is not None


def local_name(name: str) -> str:
    """Return the C name of an assigned name: the kernel's own names must stay apart from the user's."""
    return name if is_output(name) else f"t_{name}"


def read_assignments(text: str, inputs: int, scalars: tuple[str, ...]) -> Assignments:
    """Read a list of assignments.

    Parameters
    ----------
    text : str
        C assignments, each ended by a semicolon (the last one's may be left out). Inputs are x0, x1, ..., outputs
        y0, y1, ...; other names are declared at their first assignment by ``real`` (``float`` and ``double`` mean the
        same). Every number is real: ``1/2`` is 0.5.
    inputs : int
        The number of inputs.
    scalars : tuple of str
        Names of run-time scalars.

    Raises
    ------
    ProblemError
        Naming what cannot be read, an unknown name or function, an assignment to an input, or a missing output.
    """
    names = {f"x{i}": f"x{i}" for i in range(inputs)}
    names.update({name: f"SPLAT(p_{name})" for name in scalars})
    fixed = set(names)
    reader = _Reader(text, names, "expression")
    statements: list[Statement] = []
    while reader.peek():
        if reader.accept(";"):
            continue
        statements.append(_assignment(reader, fixed))
        if reader.peek():
            reader.expect(";")
    written = sorted({int(s.target[1:]) for s in statements if is_output(s.target)})
    if not written or written != list(range(len(written))):
        missing = next(i for i in range(len(written) + 1) if i not in written)
        raise reader.error(f"no assignment to y{missing}", "y0, y1, ... without gaps")
    assignments = Assignments(tuple(statements), len(written))
    if assignments.operations > MOST_OPERATIONS:
        raise reader.error(f"{assignments.operations} operations", f"at most {MOST_OPERATIONS}")
    return assignments


def _assignment(reader: _Reader, fixed: set[str]) -> Statement:
    declares = False
    while reader.peek() in (*TYPES, "const"):
        declares |= reader.take()[1] != "const"
    kind, target = reader.take()
    if kind != "name":
        raise reader.error(repr(target), "an assignment such as 'y0 = x0'")
    if target in fixed:
        raise reader.error(f"an assignment to {target}", "inputs and scalars to be only read")
    if target in CONSTANTS or target in FUNCTIONS or target in TESTS:
        raise reader.error(f"an assignment to {target}", "another name: this one is taken")
    known: str | None = reader.names.get(target)
    if not known and not declares and not is_output(target):
        raise reader.error(f"the name {target!r}", f"'real {target} = ...' at its first assignment")
    if known and declares:
        raise reader.error(f"a second declaration of {target!r}", "one")
    sign = reader.take()[1]
    if sign not in ("=", "+=", "-=", "*=", "/=") or (sign != "=" and not known):
        raise reader.error(f"{target} {sign}", f"{target} = ..." if not known else "an assignment")
    value: Any = number(reader.value())
    if sign != "=":
        old = Term(str(known), False, frozenset((target,)), "name", (), target)
        value = Term(f"({known} {sign[0]} {value.text})", False, value.reads | {target}, sign[0], (old, value))
    reader.names[target] = local_name(target)
    return Statement(target, value)
