"""Normalisation layers: local response normalisation across and within channels, and mean and variance."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers import programs
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.core.operators.pointwise.formulas import sums

AXES = 4  # a bottom has batch, channels, height and width
ACROSS_CHANNELS = 0


class OclLRN(OclLayer):
    """``x (k + alpha / n * sum of squares)^-beta`` over n = `local_size` channels.

    With WITHIN_CHANNEL ``x (1 + alpha * mean of squares)^-beta`` over windows of n by n pixels; `k` is not used there.
    `engine` changes nothing.
    """

    word: ClassVar[str] = "lrn"
    may_be_in_place: ClassVar[bool] = False

    def configure(self, shapes: list) -> None:
        given = self.parameters.lrn_param
        self.across = given.norm_region == ACROSS_CHANNELS
        self.expect(given.local_size % 2 == 1, f"local_size {given.local_size}", "an odd number")
        self.size, self.alpha, self.beta, self.k = given.local_size, given.alpha, given.beta, given.k
        self.texts = sums.window_norm(self.beta)

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(len(shape) == AXES, f"shape {shape}", f"{AXES} axes")
        if self.across:
            self.problem = core.LRNProblem(
                "forward", shape[0], shape[1], shape[2] * shape[3], size=self.size, beta=self.beta
            )
            return shapes
        self.pool = core.PoolProblem(
            direction="forward",
            operator="average",
            batch=shape[0],
            channels=shape[1],
            in_size=shape[2:],
            kernel=(self.size,) * 2,
            pad_begin=(self.size // 2,) * 2,
        )
        self.made: dict = {}
        self.count = (math.prod(shape),)
        self.mean, self.scratch = self.array(shape), self.array(shape)
        return shapes

    def program(self, text: str, inputs: str, scalars: tuple = ()) -> programs.Program:
        """Plan an expression that assigns `to`, once."""
        if text not in self.made:
            shapes = {name: self.count for name in inputs.split()}
            self.made[text] = programs.make(self.context, text, shapes, {"to": None}, scalars)
        return self.made[text]

    def compute(self, bottom: Any, top: Any) -> None:
        x, y = buffer(bottom[0].data), buffer(top[0].data)
        if self.across:
            self.context.plan(self.problem).execute((x, y), (self.alpha, self.k))
            return
        mean, scratch = buffer(self.mean), buffer(self.scratch)
        self.program(self.texts.squares, "x").run({"x": x, "to": scratch})
        self.context.plan(self.pool).execute((scratch, mean))
        last = self.program(self.texts.forward, "x mean", ("alpha", "beta"))
        last.run({"x": x, "mean": mean, "to": y}, (self.alpha, self.beta))

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        x, dy, dx = buffer(bottom[0].data), buffer(top[0].diff), buffer(bottom[0].diff)
        if self.across:
            plan = self.context.plan(self.problem.with_direction("backward"))
            plan.execute((x, dy, dx), (self.alpha, self.k))
            return
        mean, scratch, scalars = buffer(self.mean), buffer(self.scratch), (self.alpha, self.beta)
        first = self.program(self.texts.inner, "dy x mean", ("alpha", "beta"))
        first.run({"dy": dy, "x": x, "mean": mean, "to": scratch}, scalars)
        self.context.plan(self.pool.with_direction("backward")).execute((scratch, dx))
        last = self.program(self.texts.backward, "dy x mean sum", ("alpha", "beta"))
        last.run({"dy": dy, "x": x, "mean": mean, "sum": dx, "to": dx}, scalars)


class OclMVN(OclLayer):
    """Each channel, or with `across_channels` each example, less its mean and divided by its deviation plus `eps`."""

    word: ClassVar[str] = "mvn"
    may_be_in_place: ClassVar[bool] = False
    TEXTS: ClassVar[sums.MeanVariance] = sums.MeanVariance()

    def prepare(self, shapes: list) -> list:
        shape, given = shapes[0], self.parameters.mvn_param
        kept = 1 if given.across_channels else 2
        self.expect(len(shape) >= kept, f"shape {shape}", f"at least {kept} axes")
        rows = math.prod(shape[:kept])
        self.full, self.row = (rows, math.prod(shape[kept:])), (rows, 1)
        self.share, self.eps, self.scales = 1 / max(1, self.full[1]), given.eps, given.normalize_variance
        self.made: dict = {}
        self.values = {name: self.array(self.row) for name in ("mean", "variance", "first", "second")}
        return [(*shape, *(1,) * (AXES - len(shape)))]  # Caffe's top has four axes

    def run(self, text: str, arrays: dict, outputs: str, scalars: dict) -> None:
        """Run an expression of whole arrays and of a value for each row."""
        buffers = {**{name: buffer(value) for name, value in self.values.items()}, **arrays}
        if text not in self.made:
            used = programs.names_in(text)
            wide = {name: self.full if name in arrays else self.row for name in buffers if name in used}
            results = {name: None if name in arrays else self.row for name in outputs.split()}
            inputs = {name: shape for name, shape in wide.items() if name not in results}
            self.made[text] = programs.make(self.context, text, inputs, results, tuple(scalars))
        self.made[text].run(buffers, tuple(scalars.values()))

    def compute(self, bottom: Any, top: Any) -> None:
        arrays, share = {"x": buffer(bottom[0].data)}, {"share": self.share}
        self.run(self.TEXTS.mean, arrays, "mean", share)
        arrays["y"] = buffer(top[0].data)
        if not self.scales:
            self.run(self.TEXTS.centred, arrays, "y", {})
            return
        self.run(self.TEXTS.variance, arrays, "variance", share)
        self.run(self.TEXTS.normed, arrays, "y", {"eps": self.eps})

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        arrays = {"y": buffer(top[0].data), "dy": buffer(top[0].diff)}
        share, result = {"share": self.share}, buffer(bottom[0].diff)
        if not self.scales:
            self.run(self.TEXTS.centred_sum, arrays, "first", share)
            self.run(self.TEXTS.centred_gradient, {**arrays, "dx": result}, "dx", {})
            return
        self.run(self.TEXTS.normed_sums, arrays, "first second", share)
        self.run(self.TEXTS.normed_gradient, {**arrays, "dx": result}, "dx", {"eps": self.eps})
