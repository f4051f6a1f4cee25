"""Scale and Bias: a factor and a sum that are broadcast along some axes, learned or from a second bottom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers import expression_plans, fillers
from clgraft.caffe_layers.layers.activation import KEEP
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.core.nn import elementwise
from clgraft.core.nn.formulas import names_in


class Affine(OclLayer):
    """Base class of both: x is viewed as (outer, middle, inner), and the vector lies along the middle.

    Attributes
    ----------
    formula : Combination
        Of x, g (factor) and b (term).
    """

    bottoms: ClassVar[tuple] = (1, 2)
    formula: elementwise.Combination

    def vector_shape(self, given: Any, shapes: list) -> tuple:
        """Return the shape of the learned vector, or of the second bottom that replaces it."""
        if len(shapes) == 2:
            return shapes[1]
        self.expect(given.num_axes >= -1, f"num_axes {given.num_axes}", "-1 (to the end) or the number of axes")
        if given.num_axes == 0:
            return ()
        axis = self.canonical_axis(given.axis, len(shapes[0]))
        end = len(shapes[0]) if given.num_axes == -1 else axis + given.num_axes
        self.expect(end <= len(shapes[0]), f"num_axes {given.num_axes} from axis {axis}", f"axes of shape {shapes[0]}")
        return shapes[0][axis:end]

    def view(self, given: Any, shapes: list, vector: Sequence[int]) -> None:
        """Set the view of x as (outer, middle, inner), and what is computed."""
        self.backward_text = self.formula.backward()
        self.keeps_x = "x" in names_in(self.backward_text)
        self.forward_text = self.formula.forward + (KEEP if self.keeps_x else "")
        x = shapes[0]
        axis = self.canonical_axis(given.axis, len(x)) if vector else 0
        end = axis + len(vector)
        self.expect(x[axis:end] == tuple(vector), f"shape {x}", f"{tuple(vector)} from axis {axis} on")
        self.shape = math.prod(x[:axis]), math.prod(vector), math.prod(x[end:])
        self.along = 1, self.shape[1], 1
        self.plans: dict = {}
        self.kept: Any = None

    def planned(self, text: str, *outputs: str) -> expression_plans.ExpressionPlan:
        """Plan on first use."""
        if outputs not in self.plans:
            inputs = {"x": self.shape, "dy": self.shape, "g": self.along, "b": self.along}
            wanted = {name: self.along if name in ("dg", "db") else None for name in outputs}
            self.plans[outputs] = expression_plans.make(self.context, text, inputs, wanted)
        return self.plans[outputs]

    def run_forward(self, bottom: Any, top: Any, vectors: dict) -> None:
        """Compute y; `vectors` holds the buffers of g and b."""
        buffers = {"x": buffer(bottom[0].data), "y": buffer(top[0].data), **vectors}
        outputs = ["y"]
        if self.keeps_x and self.in_place:
            if self.kept is None:
                self.kept = self.array(self.shape)
            buffers["kept"] = buffer(self.kept)
            outputs.append("kept")
        self.planned(self.forward_text, *outputs).run(buffers)

    def run_backward(self, top: Any, propagate_down: Any, bottom: Any, vectors: dict) -> None:
        """Compute the gradients; `vectors` holds the buffers of g and of the wanted dg and db."""
        outputs = [name for name in ("dg", "db") if name in vectors]
        if propagate_down[0] and not self.passes_dy():
            outputs.append("dx")
        if not outputs:
            return
        buffers = {"dy": buffer(top[0].diff), "dx": buffer(bottom[0].diff), **vectors}
        if self.keeps_x:
            buffers["x"] = buffer(self.kept if self.in_place else bottom[0].data)
        self.planned(self.backward_text, *outputs).run(buffers)

    def passes_dy(self) -> bool:
        """Return whether dx is dy in the same memory."""
        return False


def gradient(blob: Any, learned: bool) -> core.Buffer:
    """Return the buffer of a vector's gradient: that of a learned blob is added to, that of a bottom overwritten."""
    return buffer(blob.diff, core.ACCUMULATE if learned else core.OVERWRITE)


class OclScale(Affine):
    """``y = x g``, with `bias_term` ``y = x g + b``; g is bottom 1 or blob 0, b the last blob."""

    word: ClassVar[str] = "scale"

    def configure(self, shapes: list) -> None:
        given = self.parameters.scale_param
        self.learned = len(shapes) == 1
        self.vector = self.vector_shape(given, shapes)
        blobs = [(self.vector, fillers.given_or(given, "filler", 1.0))] if self.learned else []
        self.bias = bool(given.bias_term)
        if self.bias:
            blobs.append((self.vector, given.bias_filler))
        self.make_blobs(*blobs)
        self.formula = elementwise.affine(self.bias)

    def prepare(self, shapes: list) -> list:
        self.view(self.parameters.scale_param, shapes, self.vector if self.learned else shapes[1])
        return shapes[:1]

    def compute(self, bottom: Any, top: Any) -> None:
        vectors = {"g": buffer(self.blobs[0].data if self.learned else bottom[1].data)}
        if self.bias:
            vectors["b"] = buffer(self.blobs[int(self.learned)].data)
        self.run_forward(bottom, top, vectors)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        factor = self.blobs[0] if self.learned else bottom[1]
        vectors = {"g": buffer(factor.data)}
        if self.learns(0) if self.learned else propagate_down[1]:
            vectors["dg"] = gradient(factor, self.learned)
        if self.bias and self.learns(int(self.learned)):
            vectors["db"] = gradient(self.blobs[int(self.learned)], True)
        self.run_backward(top, propagate_down, bottom, vectors)


class OclBias(Affine):
    """``y = x + b``; b is bottom 1 or blob 0."""

    word: ClassVar[str] = "bias"
    formula = elementwise.shifted()

    def configure(self, shapes: list) -> None:
        given = self.parameters.bias_param
        self.learned = len(shapes) == 1
        self.vector = self.vector_shape(given, shapes)
        if self.learned:
            self.make_blobs((self.vector, given.filler))

    def prepare(self, shapes: list) -> list:
        self.view(self.parameters.bias_param, shapes, self.vector if self.learned else shapes[1])
        return shapes[:1]

    def passes_dy(self) -> bool:
        return self.in_place

    def compute(self, bottom: Any, top: Any) -> None:
        self.run_forward(bottom, top, {"b": buffer(self.blobs[0].data if self.learned else bottom[1].data)})

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = self.learns(0) if self.learned else propagate_down[1]
        vectors = {"db": gradient(self.blobs[0] if self.learned else bottom[1], self.learned)} if wanted else {}
        self.run_backward(top, propagate_down, bottom, vectors)
