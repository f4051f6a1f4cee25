"""The dense layer: OclInnerProduct."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers.layer import OclLayer, buffer


class OclInnerProduct(OclLayer):
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
        self.bias = bool(given.bias_term)
        self.make_blobs(*blobs)

    def prepare(self, shapes: list) -> list:
        axis = self.canonical_axis(self.parameters.inner_product_param.axis, len(shapes[0]))
        kept, taken = shapes[0][:axis], shapes[0][axis:]
        self.expect(math.prod(taken) == self.inputs, f"{math.prod(taken)} inputs of shape {shapes[0]}", self.inputs)
        self.problem = core.DenseProblem(
            direction="forward",
            batch=math.prod(kept),
            inputs=self.inputs,
            outputs=self.outputs,
            transposed=self.transposed,
            bias=self.bias,
        )
        self.plans: dict[str, core.Plan] = {}
        return [(*kept, self.outputs)]

    def plan(self, direction: str) -> core.Plan:
        """Return the plan of a direction; a net that only predicts never plans the others."""
        if direction not in self.plans:
            self.plans[direction] = self.context.plan(self.problem.with_direction(direction))
        return self.plans[direction]

    def compute(self, bottom: Any, top: Any) -> None:
        blobs = [buffer(self.blobs[i].data) for i in range(1 + self.bias)]
        self.plan("forward").execute((buffer(bottom[0].data), *blobs, buffer(top[0].data)))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        w, dy = self.blobs[0], buffer(top[0].diff)
        if self.learns(0):
            dw = buffer(w.diff, core.ACCUMULATE)
            self.plan("backward_weight").execute((buffer(bottom[0].data), dy, dw))
        if self.bias and self.learns(1):
            self.plan("backward_bias").execute((dy, buffer(self.blobs[1].diff, core.ACCUMULATE)))
        if propagate_down[0]:
            self.plan("backward_data").execute((dy, buffer(w.data), buffer(bottom[0].diff)))
