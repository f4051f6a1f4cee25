"""Crop, Tile and Reduction: a part of a bottom, its repetition, and its sums."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers import programs
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.core.operators.pointwise.formulas import sums


class OclCrop(OclLayer):
    """From `axis` on as much of bottom 0 as bottom 1 has, from `offset` on (0 by default, one for all axes or each)."""

    word: ClassVar[str] = "crop"
    bottoms: ClassVar[tuple] = (2, 2)
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, (shape, like) = self.parameters.crop_param, shapes
        axis = self.canonical_axis(given.axis, len(shape))
        self.expect(len(like) == len(shape), f"shape {like} of bottom 1", f"{len(shape)} axes, as bottom 0")
        offsets, cut = list(given.offset), len(shape) - axis
        self.expect(len(offsets) in (0, 1, cut), f"{len(offsets)} values of offset", f"none, 1 or {cut}")
        begin = (0,) * axis + tuple(offsets if len(offsets) == cut else (offsets or [0]) * cut)
        wanted = (*shape[:axis], *like[axis:])
        inside = all(b + w <= size for b, w, size in zip(begin, wanted, shape))
        self.expect(inside, f"offset {offsets} and shape {like} of bottom 1", f"a part of bottom 0, of shape {shape}")
        self.problem = core.SliceProblem("forward", shape, wanted, begin)
        return [wanted]

    def compute(self, bottom: Any, top: Any) -> None:
        self.context.plan(self.problem).execute((buffer(bottom[0].data), buffer(top[0].data)))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            plan = self.context.plan(self.problem.with_direction("backward"))
            plan.execute((buffer(top[0].diff), buffer(bottom[0].diff)), (0.0,))


class OclTile(OclLayer):
    """The bottom `tiles` times, one after the other along `axis`."""

    word: ClassVar[str] = "tile"
    may_be_in_place: ClassVar[bool] = False

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.tile_param, shapes[0]
        self.expect(given.HasField("tiles") and given.tiles > 0, f"tiles {given.tiles}", "a number of at least 1")
        axis = self.canonical_axis(given.axis, len(shape))
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis:])
        self.problem = core.RepeatProblem((outer, inner), (1, given.tiles), whole=True)
        wide = {"dy": (outer, given.tiles, inner)}
        self.gradient = programs.make(self.context, "dx = dy;", wide, {"dx": (outer, 1, inner)})
        return [(*shape[:axis], shape[axis] * given.tiles, *shape[axis + 1 :])]

    def compute(self, bottom: Any, top: Any) -> None:
        self.context.plan(self.problem).execute((buffer(bottom[0].data), buffer(top[0].data)))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            self.gradient.run({"dy": buffer(top[0].diff), "dx": buffer(bottom[0].diff)})


class OclReduction(OclLayer):
    """`coeff` times the SUM, ASUM (of absolute values), SUMSQ or MEAN over the axes from `axis` on."""

    word: ClassVar[str] = "reduction"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.reduction_param
        kinds = {given.ASUM: sums.SUM_OF_ABSOLUTE, given.SUMSQ: sums.SUM_OF_SQUARES}
        self.formula = kinds.get(given.operation, sums.SUM)
        self.mean = given.operation == given.MEAN

    def prepare(self, shapes: list) -> list:
        given, shape = self.parameters.reduction_param, shapes[0]
        axis = self.canonical_axis(given.axis, len(shape))
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis:])
        self.factor = given.coeff / (max(inner, 1) if self.mean else 1)
        full, reduced = {"x": (outer, inner)}, (outer, 1)
        self.forward_program = programs.make(self.context, self.formula.forward, full, {"y": reduced}, ("factor",))
        self.backward_program: programs.Program | None = None
        self.full, self.reduced = full, reduced
        return [shape[:axis]]

    def compute(self, bottom: Any, top: Any) -> None:
        self.forward_program.run({"x": buffer(bottom[0].data), "y": buffer(top[0].data)}, (self.factor,))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        if self.backward_program is None:
            inputs = {**self.full, "dy": self.reduced}
            self.backward_program = programs.make(
                self.context, self.formula.backward, inputs, {"dx": None}, ("factor",)
            )
        buffers = {"x": buffer(bottom[0].data), "dy": buffer(top[0].diff), "dx": buffer(bottom[0].diff)}
        self.backward_program.run(buffers, (self.factor,))
