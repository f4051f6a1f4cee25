"""Arithmetic of several tensors: MXNet's elemwise and broadcast operators, and sums of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core import PointwiseProblem
from clgraft.core.nn import elementwise
from clgraft.core.operators.pointwise.problem import broadcast_shape
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import IN, IN_GRAD, OUT, OUT_GRAD, STATE, Call, Graft, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registration import register

OPERATIONS = ("add", "divide", "hypot", "maximum", "minimum", "multiply", "power", "subtract")
MANY = ("add", "multiply", "maximum")
MOST_TERMS = 62  # most terms of a sum in one kernel: devices limit arguments, and compilers nesting
PART_TERMS = 32  # terms in each kernel of a longer sum


@register
@dataclass(frozen=True)
class Eltwise(Operator):
    """``ocl_eltwise``: an operation on two or more tensors.

    Parameters
    ----------
    operation : str
        ``add subtract multiply divide power maximum minimum hypot``; add by default. Ties of maximum and minimum
        go to the first input, as in MXNet.
    num_args : int
        Number of inputs data0, data1, ...; 2 by default. More than 2 for add, multiply and maximum, of one shape.
    broadcast : bool
        Two inputs broadcast by numpy's rules (the default), or are of one shape, which is then inferred from either.
    coefficients : tuple of float
        Factors of the inputs of add.
    """

    op_type: ClassVar[str] = "ocl_eltwise"
    in_place: ClassVar[bool] = False

    operation: str
    num_args: int
    broadcast: bool
    coefficients: tuple[float, ...]

    @property
    def inferred(self) -> tuple[str, ...]:
        return () if self.broadcast else self.arguments

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(f"data{i}" for i in range(self.num_args))

    @classmethod
    def read(cls, attributes: Attributes) -> Eltwise:
        operation = attributes.choice("operation", OPERATIONS, "add")
        count = attributes.integer("num_args", 2, low=1)
        coefficients = attributes.numbers("coefficients", ())
        if count != 2 and operation not in MANY:
            raise attributes.error("num_args", count, f"2, for operation {operation!r}")
        if coefficients and operation != "add":
            raise attributes.error("coefficients", coefficients, f"none, for operation {operation!r}")
        if coefficients and len(coefficients) != count:
            raise attributes.error("coefficients", coefficients, f"{count} numbers, one per input")
        broadcast = attributes.flag("broadcast", count == 2 and not coefficients)
        if broadcast and (count != 2 or coefficients):
            raise attributes.error("broadcast", True, "False, for other than two inputs or with coefficients")
        return cls(operation, count, broadcast, coefficients)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known = [shape for shape in shapes if shape is not None]
        if not known or (self.broadcast and len(known) < len(shapes)):
            return None
        if self.broadcast:
            return known, [broadcast_shape(tuple(known))], []
        needed = [known[0]] * self.num_args
        self.agree(shapes, needed)
        return needed, [known[0]], []

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        inputs = tuple((IN, i) for i in range(self.num_args))
        if self.num_args > MOST_TERMS and self.operation == "add":
            return self._long_sum(shapes[0], dtype)
        forward, backward = (
            self._binary(shapes, dtype) if self.num_args == 2 and not self.coefficients else (None, None)
        )
        if forward is None or backward is None:
            forward, backward = self._many(shapes[0], dtype)
        calls = (Call(forward, (*inputs, (OUT, 0)), self.coefficients),)
        return Graft({True: calls, False: calls}, {True: backward, False: backward})

    def _binary(self, shapes: tuple[Shape, ...], dtype: str) -> tuple[PointwiseProblem, tuple[Call, ...]]:
        a, b = shapes
        reads = tuple((IN, "ab".index(name)) for name in elementwise.find_binary(self.operation).reads)
        gradient = elementwise.binary_backward(self.operation, a, b, dtype)
        call = Call(gradient, ((OUT_GRAD, 0), *reads, (IN_GRAD, 0), (IN_GRAD, 1)))
        return elementwise.binary_forward(self.operation, a, b, dtype), (call,)

    def _long_sum(self, shape: Shape, dtype: str) -> Graft:
        """Return a sum in several kernels, which add to the sum of the terms before theirs."""
        weighted, sum_before = bool(self.coefficients), (STATE, 0)
        terms = [((IN, i), factor) for i, factor in enumerate(self.coefficients or (1.0,) * self.num_args)]
        calls = []
        while terms:
            part, terms = terms[:PART_TERMS], terms[PART_TERMS:]
            problem = elementwise.sum_forward(shape, len(part), weighted, dtype)
            factors = tuple(factor for _, factor in part) if weighted else ()
            calls.append(Call(problem, (*(array for array, _ in part), sum_before if terms else (OUT, 0)), factors))
            if terms:
                terms.insert(0, (sum_before, 1.0))
        forward, backward = tuple(calls), self._sum_gradients(shape, dtype)
        return Graft({True: forward, False: forward}, {True: backward, False: backward}, ((shape, dtype, 0.0),))

    def _sum_gradients(self, shape: Shape, dtype: str) -> tuple[Call, ...]:
        """Return a call for each gradient of a sum: the gradient's write request applies to it alone."""
        gradient = elementwise.scale_forward(shape, dtype)
        factors = self.coefficients or (1.0,) * self.num_args
        return tuple(Call(gradient, ((OUT_GRAD, 0), (IN_GRAD, i)), (factor,)) for i, factor in enumerate(factors))

    def _many(self, shape: Shape, dtype: str) -> tuple[PointwiseProblem, tuple[Call, ...]]:
        count, dy = self.num_args, (OUT_GRAD, 0)
        if self.operation == "add":
            problem = elementwise.sum_forward(shape, count, bool(self.coefficients), dtype)
            return problem, self._sum_gradients(shape, dtype)
        arrays = (dy, *((IN, i) for i in range(count)), *((IN_GRAD, i) for i in range(count)))
        if self.operation == "multiply":
            return elementwise.product_forward(shape, count, dtype), (
                Call(elementwise.product_backward(shape, count, dtype), arrays),
            )
        return elementwise.max_forward(shape, count, elementwise.FIRST, dtype), (
            Call(elementwise.max_backward(shape, count, elementwise.FIRST, dtype), arrays),
        )
