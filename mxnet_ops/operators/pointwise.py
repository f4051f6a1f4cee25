"""The user's own operator: an expression per element and the expression of its gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft import core
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.pointwise import broadcast_shape
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import POINTWISE, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

NAME = re.compile(r"\b(dx|dy|x|y)(\d+)\b")
REDUCTIONS = ("none", "sum", "prod", "max", "min")
NO_GRADIENT = "none"


@register
@dataclass(frozen=True)
class Pointwise(Operator):
    """``ocl_pointwise``: outputs y0, y1, ... from inputs x0, x1, ..., which broadcast by numpy's rules.

    Parameters
    ----------
    expression : str
        C assignments, such as ``"y0 = a * x0 * x1;"`` (see `core.PointwiseProblem`).
    gradient : str
        Assignments to dx0, dx1, ... from x0, ..., y0, ..., dy0, ... and the scalars, such as
        ``"dx0 = a * dy0 * x1; dx1 = a * dy0 * x0;"``. Gradients of inputs that were broadcast are summed.
        ``"none"`` if nothing flows back.
    num_args : int
        Number of inputs; 1 by default.
    scalars : dict of str to float
        Named parameters; two calls that differ only here share one kernel.
    reduction : str
        ``sum prod max min`` of every output over `axis`, or ``none``.
    axis : tuple of int
        All axes if not given.
    keepdims : bool
        Leave reduced axes as 1. In `gradient`, y and dy broadcast to the inputs' common shape either way.
    """

    op_type: ClassVar[str] = "ocl_pointwise"
    in_place: ClassVar[bool] = False

    expression: str
    gradient: str
    num_args: int
    scalars: tuple[tuple[str, float], ...]
    reduction: str
    axis: tuple[int, ...]
    keepdims: bool

    @property
    def chain_place(self) -> int:  # type: ignore[override]
        return POINTWISE if self.reduction == "none" else 0

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(f"data{i}" for i in range(self.num_args))

    @property
    def outputs(self) -> tuple[str, ...]:
        count = self._forward(((),) * self.num_args, "float32", reduced=False).assignments.outputs
        return ("output",) if count == 1 else tuple(f"output{i}" for i in range(count))

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        return bool(re.search(r"\by\d+\b", self.gradient))

    @classmethod
    def read(cls, attributes: Attributes) -> Pointwise:
        text = attributes.text("scalars", "{}")
        try:
            scalars = tuple((str(name), float(value)) for name, value in dict(ast.literal_eval(text)).items())
        except (ValueError, SyntaxError, TypeError):
            raise attributes.error("scalars", text, "a dict of names to numbers") from None
        operator = cls(
            expression=attributes.text("expression"),
            gradient=attributes.text("gradient"),
            num_args=attributes.integer("num_args", 1, low=1),
            scalars=scalars,
            reduction=attributes.choice("reduction", REDUCTIONS, "none"),
            axis=attributes.sizes("axis", (), low=-8),
            keepdims=attributes.flag("keepdims", False),
        )
        count = len(operator.outputs)  # reads the expression
        if operator.gradient != NO_GRADIENT:
            shape = ((),) * operator.num_args
            found = operator._backward(shape, ((),) * count, "float32").assignments.outputs
            if found != operator.num_args:
                raise attributes.error(
                    "gradient", f"of {found} inputs", f"of {operator.num_args}, dx0 = ...; and so on"
                )
        return operator

    def _reduced(self, common: Shape) -> tuple[Shape, Shape]:
        """Return the axes that are reduced, and the outputs' shape with those as 1."""
        if self.reduction == "none":
            return (), common
        if not all(-len(common) <= a < len(common) for a in self.axis):
            raise self.error("axis", self.axis, f"axes of the inputs' common shape {common}")
        axes = tuple(sorted({a % len(common) for a in self.axis})) or tuple(range(len(common)))
        return axes, tuple(1 if i in axes else size for i, size in enumerate(common))

    def _forward(self, shapes: tuple[Shape, ...], dtype: str, reduced: bool = True) -> core.PointwiseProblem:
        names = tuple(name for name, _ in self.scalars)
        problem = core.PointwiseProblem(shapes, self.expression, (), names, dtype=dtype)
        if not reduced or self.reduction == "none":
            return problem
        axes, _ = self._reduced(problem.common_shape)
        if not axes:
            return problem
        folds = (core.Reduction(self.reduction, axes),) * problem.assignments.outputs
        return core.PointwiseProblem(shapes, self.expression, folds, names, dtype=dtype)

    def _backward(self, shapes: tuple[Shape, ...], outputs: tuple[Shape, ...], dtype: str) -> core.PointwiseProblem:
        """Return the gradients' problem: its inputs are output gradients, inputs, and outputs if they are read."""
        count = len(outputs)
        first = {"dy": 0, "x": count, "y": count + len(shapes)}

        def rename(found: re.Match[str]) -> str:
            kind, number = found[1], int(found[2])
            known = {"dx": len(shapes), "x": len(shapes)}.get(kind, count)
            if number >= known:
                raise self.error("gradient", repr(found[0]), f"{kind}0 to {kind}{known - 1}")
            return f"y{number}" if kind == "dx" else f"x{first[kind] + number}"

        text = NAME.sub(rename, self.gradient)
        inputs = (*outputs, *shapes, *(outputs if self.backward_reads_outputs else ()))
        common = broadcast_shape(shapes)
        folds = tuple(None if shape == common else core.Reduction("sum", shape=shape) for shape in shapes)
        return core.PointwiseProblem(inputs, text, folds, tuple(name for name, _ in self.scalars), dtype=dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known = tuple(shape for shape in shapes if shape is not None)
        if len(known) < len(shapes):
            return None
        axes, kept = self._reduced(broadcast_shape(known))
        output = kept if self.keepdims else tuple(size for i, size in enumerate(kept) if i not in axes) or (1,)
        return list(known), [output] * len(self.outputs), []

    def build(self, build: Build, *values: Tensor) -> tuple[Tensor, ...]:
        first, dtype, numbers = build.here, values[0].dtype, dict(self.scalars)
        shapes = tuple(value.shape for value in values)
        _, kept = self._reduced(broadcast_shape(shapes))
        outputs = build.add(self._forward(shapes, dtype), *values, scalars=numbers)

        def backward(build: Build, dys: tuple[Tensor | None, ...], wanted: tuple[bool, ...]) -> Sequence[Tensor | None]:
            if self.gradient == NO_GRADIENT:
                return (None,) * len(values)
            (known, *_) = (dy for dy in dys if dy is not None)
            given = (build.zeros(known) if dy is None else dy for dy in dys)
            read = outputs if self.backward_reads_outputs else ()
            unwanted = [f"y{i}" for i, asked in enumerate(wanted) if not asked]
            problem = self._backward(shapes, (kept,) * len(outputs), dtype)
            return build.add(problem, *given, *values, *read, scalars=numbers, unwanted=unwanted)

        build.state_gradient(first, values, outputs, backward)
        return outputs
