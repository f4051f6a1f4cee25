"""Normalize, a layer of the SSD fork: pixels or whole examples divided by their length (Liu et al. 2015, ParseNet)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers import fillers, programs
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.core.operators.pointwise.formulas import sums


class OclNormalize(OclLayer):
    """``scale x / sqrt(sum of squares + eps)``, the sum over an example, or without `across_spatial` over its channels.

    Blob scale (C), or of one value if `channel_shared`. The gradient is the formula's; the fork's own leaves the scales
    out of its inner sum and is right only where all channels have the same.
    """

    word: ClassVar[str] = "normalize"
    may_be_in_place: ClassVar[bool] = False
    TEXTS: ClassVar[sums.Length] = sums.Length()

    def configure(self, shapes: list) -> None:
        given = self.parameters.norm_param
        self.expect(len(shapes[0]) >= 2, f"shape {shapes[0]}", "at least 2 axes")
        self.scales = 1 if given.channel_shared else shapes[0][1]
        self.eps = given.eps
        blob = () if given.channel_shared else (self.scales,)
        self.make_blobs((blob, fillers.given_or(given, "scale_filler", 1.0)))

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(self.scales in (1, shape[1]), f"{shape[1]} channels", self.scales)
        self.full = (shape[0], shape[1], math.prod(shape[2:]))
        self.row = (shape[0], 1, 1 if self.parameters.norm_param.across_spatial else self.full[2])
        self.squares, self.inner = (self.array(self.row) for _ in range(2))
        self.made: dict = {}
        return shapes

    def run(self, text: str, arrays: dict, *outputs: str) -> None:
        """Run an expression; planned on first use."""
        if outputs not in self.made:
            along = (1, self.scales, 1)
            shapes = {"squares": self.row, "inner": self.row, "scale": along, "x": self.full, "dy": self.full}
            results = {"squares": self.row, "inner": self.row, "dscale": along}
            wanted = {name: results.get(name) for name in outputs}
            used = programs.names_in(text)
            inputs = {name: shape for name, shape in shapes.items() if name in used and name not in wanted}
            scalars = ("eps",) if "eps" in used else ()
            self.made[outputs] = programs.make(self.context, text, inputs, wanted, scalars), scalars
        program, scalars = self.made[outputs]
        program.run(arrays, (self.eps,) if scalars else ())

    def compute(self, bottom: Any, top: Any) -> None:
        arrays = {"x": buffer(bottom[0].data), "squares": buffer(self.squares), "y": buffer(top[0].data)}
        arrays["scale"] = buffer(self.blobs[0].data)
        self.run(self.TEXTS.squares, arrays, "squares")
        self.run(self.TEXTS.forward, arrays, "y")

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = ["dx"] * bool(propagate_down[0]) + ["dscale"] * self.learns(0)
        if not wanted:
            return
        scale = self.blobs[0]
        arrays = {
            "x": buffer(bottom[0].data),
            "dy": buffer(top[0].diff),
            "squares": buffer(self.squares),
            "inner": buffer(self.inner),
            "scale": buffer(scale.data),
            "dx": buffer(bottom[0].diff),
            "dscale": buffer(scale.diff, core.ACCUMULATE),
        }
        self.run(self.TEXTS.inner, arrays, "inner")
        self.run(self.TEXTS.backward, arrays, *wanted)
