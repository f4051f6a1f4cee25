"""Expressions per element as nodes: each sign and each function is one, or a few, of ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import TensorProto

from clgraft.core.model import ModelError
from clgraft.core.nn.element_functions import find
from clgraft.core.nn.formulas import BY_OTHERS, renamed
from clgraft.core.operators.pointwise import ALIASES, CONSTANTS, Statement, Term
from clgraft.plugins.onnx.writing.writer import Writer

ONE = {
    **{"fabs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "rint": "Round"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh"},
    **{"cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf"},
    **{"sign": "Sign"},
}
TWO = {
    **{"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "fmax": "Max", "fmin": "Min", "pow": "Pow"},
    **{
        "<": "Less",
        ">": "Greater",
        "<=": "LessOrEqual",
        ">=": "GreaterOrEqual",
        "==": "Equal",
        "&&": "And",
        "||": "Or",
    },
}
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
# expressions that are an operator of their own
WHOLE = {
    renamed(find(name).value, {"x": "x0"}): operator
    for name, operator in (("relu", "Relu"), ("relu_keep_nan", "Relu"), ("sigmoid", "Sigmoid"))
}


class Expression:
    """The statements of a pointwise problem.

    Parameters
    ----------
    writer : Writer
    names : mapping of str to str
        The values that x0, x1, ... and the scalars stand for.
    dtype : str
        Of all numbers.
    read : callable
        Returns the term of a text over names, for functions that have no operator of their own.
    """

    def __init__(self, writer: Writer, names: Mapping[str, str], dtype: str, read: Callable[[str, int], Term]) -> None:
        self.writer, self.names, self.dtype, self._read = writer, dict(names), dtype, read

    def run(self, statements: tuple[Statement, ...], named: Mapping[str, str]) -> dict[str, str]:
        """Add the nodes of statements, and return the values of all their targets.

        Parameters
        ----------
        named : mapping of str to str
            What the values of some targets are to be called.
        """
        last = {statement.target: statement for statement in statements}
        for statement in statements:
            wish = named.get(statement.target, "") if last[statement.target] is statement else ""
            self.names[statement.target] = self.writer.named(self.term(statement.value), wish)
        return self.names

    def number(self, value: float) -> str:
        """Return a number as a constant."""
        return self.writer.constant(np.array(value), self.dtype)

    def term(self, term: Term, given: Mapping[str, str] | None = None) -> str:
        """Return the value of a term."""
        if term.operator == "name":
            return (self.names if given is None else given)[term.word]
        if term.operator == "number":
            return self.number(CONSTANTS[term.word] if term.word in CONSTANTS else float(term.word))
        return self.apply(term.operator, [self.term(each, given) for each in term.operands])

    def apply(self, operator: str, values: list[str]) -> str:
        """Return what a sign or a function makes of values."""
        name = {alias: own for alias, own in ALIASES.items() if own in ONE or own in TWO}.get(operator, operator)
        if name == "-" and len(values) == 1:
            return self._add("Neg", values)
        if name in ONE:
            return self._add(ONE[name], values)
        if name in TWO:
            return self._add(TWO[name], values)
        if name in ("?", "!", "isnan", "isinf"):
            return self._add({"?": "Where", "!": "Not", "isnan": "IsNaN", "isinf": "IsInf"}[name], values)
        if name == "real":
            return self._add("Cast", values, to=TYPES[self.dtype])
        if name in ("truth", "!="):
            return self._add("Not", [self._add("Equal", [*values, self.number(0)][:2])])
        if name == "isfinite":
            return self._add("Not", [self._add("Or", [self._add("IsNaN", values), self._add("IsInf", values)])])
        if name == "signbit":
            return self._add("Less", [*values, self.number(0)])
        if name == "fmod":
            return self._add("Mod", values, fmod=1)
        if name in BY_OTHERS:
            return self.term(self._read(BY_OTHERS[name], len(values)), dict(zip("abc", values)))
        raise ModelError(f"[export] got the function {operator}, expected one that ONNX has")

    def _add(self, operator: str, values: list[str], **attributes: int) -> str:
        shape = np.broadcast_shapes(*(self.writer.shape(value) for value in values))
        return self.writer.add(operator, values, shape, **attributes)
