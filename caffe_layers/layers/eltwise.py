"""Eltwise: sum, product or maximum of several bottoms."""

from __future__ import annotations

from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import MANY, same_shapes
from clgraft.core.nn import elementwise
from clgraft.core.nn.builder import Build, Tensor


class OclEltwise(BuiltLayer):
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
        # the factors are part of the expression, not scalars: a net has few, and a factor of 1 costs nothing
        self.factors = factors or [1.0] * count

    def prepare(self, shapes: list) -> list:
        same_shapes(self, shapes)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        if self.operation == "SUM":
            formula = elementwise.total(self.factors)
        elif self.operation == "PROD":
            formula = elementwise.product(len(bottoms))
        else:
            formula = elementwise.maximum(len(bottoms), elementwise.SECOND)
        return elementwise.combined_alike(build, formula, bottoms)
