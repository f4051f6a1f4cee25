"""Arithmetic of several tensors: MXNet's elemwise and broadcast operators, and sums of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import elementwise
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import broadcast_shape
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import POINTWISE, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

OPERATIONS = ("add", "divide", "hypot", "maximum", "minimum", "multiply", "power", "subtract")
MANY = ("add", "multiply", "maximum")


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
    chain_place: ClassVar[int] = POINTWISE

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

    def build(self, build: Build, *values: Tensor) -> Tensor:
        if len(values) == 2 and not self.coefficients:
            return elementwise.binary(build, self.operation, *values)
        if self.operation == "add":
            return elementwise.summed(build, values, self.coefficients)
        return (elementwise.multiplied if self.operation == "multiply" else elementwise.greatest)(build, values)
