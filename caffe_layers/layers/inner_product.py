"""The dense layer: OclInnerProduct."""

from __future__ import annotations

import math
from typing import ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import products
from clgraft.core.nn.builder import Build, Tensor


class OclInnerProduct(BuiltLayer):
    """Dense layer; blobs w (num_output, inputs), or (inputs, num_output) with `transpose`, and, with `bias_term`, b.

    The axes from `axis` on are the inputs, those before it are kept.
    """

    word: ClassVar[str] = "dense"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.inner_product_param
        self.axis = self.canonical_axis(given.axis, len(shapes[0]))
        self.inputs = math.prod(shapes[0][self.axis :])
        self.outputs, self.transposed = given.num_output, bool(given.transpose)
        self.expect(self.outputs > 0, f"num_output {self.outputs}", "at least 1")
        w = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        blobs: list = [(w, given.weight_filler)]
        if given.bias_term:
            blobs.append(((self.outputs,), given.bias_filler))
        self.make_blobs(*blobs)

    def prepare(self, shapes: list) -> list:
        axis = self.canonical_axis(self.parameters.inner_product_param.axis, len(shapes[0]))
        taken = shapes[0][axis:]
        self.expect(math.prod(taken) == self.inputs, f"{math.prod(taken)} inputs of shape {shapes[0]}", self.inputs)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,) = bottoms
        axis = self.canonical_axis(self.parameters.inner_product_param.axis, x.ndim)
        return products.dense(build, x, *blobs, axis=axis, transposed=self.transposed)
