"""Eltwise: sum, product or maximum of several bottoms."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft.caffe_layers.layers import expression_plans
from clgraft.caffe_layers.layers.layer import MANY, OclLayer, buffer, same_shapes
from clgraft.core.nn import elementwise


class OclEltwise(OclLayer):
    """SUM with `coeff`, PROD, or MAX of two bottoms or more.

    MAX: among equal values of bottoms 0 and 1 the gradient goes to bottom 1, a later one wins only if it is greater.
    PROD: the gradient is dy times the other bottoms; `stable_prod_grad: false` (dy y / x) would differ only near 0.
    Working in place is refused: Caffe's own layer computes something else then.
    """

    word: ClassVar[str] = "eltwise"
    bottoms: ClassVar[tuple] = (2, MANY)
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.eltwise_param
        count = self.bottom_count
        self.operation = {given.PROD: "PROD", given.SUM: "SUM", given.MAX: "MAX"}[given.operation]
        factors = list(given.coeff)
        self.expect(len(factors) in (0, count), f"{len(factors)} values of coeff", f"none or {count}, one per bottom")
        self.expect(not factors or self.operation == "SUM", f"coeff with {self.operation}", "operation: SUM")
        if self.operation == "SUM":
            # the factors are part of the expression, not scalars: a net has few, and a factor of 1 costs nothing
            self.formula = elementwise.total(factors or [1.0] * count)
        elif self.operation == "PROD":
            self.formula = elementwise.product(count)
        else:
            self.formula = elementwise.maximum(count, elementwise.SECOND)

    def prepare(self, shapes: list) -> list:
        same_shapes(self, shapes)
        self.shape = (math.prod(shapes[0]),)
        inputs = {f"x{i}": self.shape for i in range(self.bottom_count)}
        self.forward_plan = expression_plans.make(self.context, self.formula.forward, inputs, {"y": None})
        self.backward_plans: dict = {}
        return shapes[:1]

    def compute(self, bottom: Any, top: Any) -> None:
        buffers = {f"x{i}": buffer(bottom[i].data) for i in range(self.bottom_count)}
        buffers["y"] = buffer(top[0].data)
        self.forward_plan.run(buffers)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = tuple(i for i in range(self.bottom_count) if propagate_down[i])
        if not wanted:
            return
        if wanted not in self.backward_plans:
            self.backward_plans[wanted] = self.plan_backward(wanted)
        planned = self.backward_plans[wanted]
        buffers = {"dy": buffer(top[0].diff)}
        for i in range(self.bottom_count):
            if f"x{i}" in planned.names:
                buffers[f"x{i}"] = buffer(bottom[i].data)
            if i in wanted:
                buffers[f"dx{i}"] = buffer(bottom[i].diff)
        planned.run(buffers)

    def plan_backward(self, wanted: tuple) -> expression_plans.ExpressionPlan:
        """Plan the gradients of some of the bottoms."""
        shapes = {"dy": self.shape, **{f"x{i}": self.shape for i in range(self.bottom_count)}}
        text = self.formula.backward(f"x{i}" for i in wanted)
        return expression_plans.make(self.context, text, shapes, {f"dx{i}": None for i in wanted})
