"""Values folded over axes: MXNet's sum, mean, max and min."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core import PointwiseProblem, Reduction
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import IN, IN_GRAD, OUT, OUT_GRAD, Call, Graft, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registration import register

FOLDS = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
EXTREMES = ("max", "min")


@register
@dataclass(frozen=True)
class Reduce(Operator):
    """``ocl_reduce``: data folded over some axes.

    Parameters
    ----------
    operation : str
        ``sum mean max min``. The gradient of max and min goes to every element that equals them, as in MXNet.
    axis : tuple of int
        All axes if not given.
    exclude : bool
        Fold the axes that `axis` does not name. False by default.
    keepdims : bool
        Leave the folded axes as 1. False by default; nothing left is the shape (1,).
    """

    op_type: ClassVar[str] = "ocl_reduce"

    operation: str
    axis: tuple[int, ...]
    exclude: bool
    keepdims: bool

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        return self.operation in EXTREMES

    @classmethod
    def read(cls, attributes: Attributes) -> Reduce:
        operation = attributes.choice("operation", FOLDS)
        axis = attributes.sizes("axis", (), low=-32)
        return cls(operation, axis, attributes.flag("exclude", False), attributes.flag("keepdims", False))

    def _folded(self, data: Shape) -> set[int]:
        ndim = len(data)
        named = {axis % ndim for axis in self.axis if -ndim <= axis < ndim}
        if len(named) < len(self.axis):
            raise self.error("axis", self.axis, f"different axes of data of shape {data}")
        every = set(range(ndim))
        return every if not self.axis else every - named if self.exclude else named

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        folded = self._folded(data)
        if self.keepdims:
            return [data], [tuple(1 if axis in folded else size for axis, size in enumerate(data))], []
        return [data], [tuple(size for axis, size in enumerate(data) if axis not in folded) or (1,)], []

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        data = shapes[0]
        folded = self._folded(data)
        kept = tuple(1 if axis in folded else size for axis, size in enumerate(data))
        count = max(1, math.prod(data) // max(1, math.prod(kept)))
        factor = 1 / count if self.operation == "mean" else 1.0
        fold = Reduction(FOLDS[self.operation], shape=kept)
        forward = PointwiseProblem((data,), "y0 = x0;", (fold,), ("factor",), alpha="factor", dtype=dtype)
        if self.operation in EXTREMES:
            backward = PointwiseProblem((kept, data, kept), "y0 = x1 == x2 ? x0 : 0;", dtype=dtype)
            back = Call(backward, ((OUT_GRAD, 0), (IN, 0), (OUT, 0), (IN_GRAD, 0)))
        else:
            # x says only how often dy is repeated
            backward = PointwiseProblem((kept, data), "y0 = factor * x0;", (), ("factor",), dtype=dtype)
            back = Call(backward, ((OUT_GRAD, 0), (IN, 0), (IN_GRAD, 0)), (factor,))
        calls = (Call(forward, ((IN, 0), (OUT, 0)), (factor,)),)
        return Graft({True: calls, False: calls}, {True: (back,), False: (back,)})
