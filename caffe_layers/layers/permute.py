"""Permute, a layer of the SSD fork and others: the axes of a bottom in another order."""

from __future__ import annotations

from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers.layer import OclLayer, buffer


class OclPermute(OclLayer):
    """Axis i of the top is axis ``order[i]`` of the bottom; axes that `order` does not name follow as they were."""

    word: ClassVar[str] = "permute"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        shape, given = shapes[0], list(self.parameters.permute_param.order)
        good = len(set(given)) == len(given) and all(axis < len(shape) for axis in given)
        self.expect(good, f"order {given}", f"different axes of {len(shape)} dimensions")
        order = (*given, *(axis for axis in range(len(shape)) if axis not in given))
        self.problem = core.TransposeProblem(shape, order)
        return [self.problem.out_shape]

    def compute(self, bottom: Any, top: Any) -> None:
        self.context.plan(self.problem).execute((buffer(bottom[0].data), buffer(top[0].data)))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            self.context.plan(self.problem.back()).execute((buffer(top[0].diff), buffer(bottom[0].diff)))
