"""OclPointwise: a layer that computes the user's own expression."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.caffe_layers.layers.layer import MANY
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import without_marks
from clgraft.core.errors import ProblemError
from clgraft.core.nn import expressions
from clgraft.core.nn.builder import Build
from clgraft.core.nn.formulas import names_in

OUTPUT = re.compile(r"\by(\d+)\s*=(?!=)")
FIELDS = ("forward", "backward", "scalars", "name")


class OclPointwise(BuiltLayer):
    """One expression per element over any number of bottoms, which broadcast by numpy's rules.

    `param_str` is JSON::

        {"forward": "y0 = x0 * x1 + a;", "backward": "dx0 = dy0 * x1; dx1 = dy0 * x0;", "scalars": {"a": 0.5}}

    Bottoms are x0, x1, ..., tops y0, y1, ...; the backward expression may read both and dy0, dy1, ..., and assigns
    dx0, dx1, ...; a gradient is summed over the axes along which its bottom is broadcast. A net that never learns
    through the layer may leave `backward` out. To work in place, the backward expression must not read x0.
    """

    word: ClassVar[str] = "pointwise"
    bottoms: ClassVar[tuple] = (1, MANY)
    tops: ClassVar[tuple] = (1, MANY)

    def read(self, text: str) -> None:
        self.parameters = schema.parse_layer("")
        text = without_marks(text)
        try:
            given = json.loads(text)
        except ValueError as error:
            expected = 'JSON such as {"forward": "y0 = 2 * x0"}'
            raise ProblemError(f"[pointwise] got param_str {text!r} ({error}), expected {expected}") from None
        self.expect(isinstance(given, dict), f"param_str {text!r}", "a JSON object")
        unknown = sorted(set(given) - set(FIELDS))
        self.expect(not unknown, f"fields {unknown}", f"some of {FIELDS}")
        self.expect("forward" in given, f"param_str {text!r}", "a field forward")
        self.parameters.name = str(given.get("name", ""))
        self.forward_text, self.backward_text = given["forward"], given.get("backward", "")
        self.scalars = {name: float(value) for name, value in given.get("scalars", {}).items()}

    def configure(self, shapes: list) -> None:
        assigned = {int(number) for number in OUTPUT.findall(self.forward_text)}
        wanted = list(range(self.top_count))
        self.expect(sorted(assigned) == wanted, f"assignments to y of {sorted(assigned)}", f"{wanted}, one per top")
        named = names_in(self.backward_text)
        self.stated = tuple(f"dx{i}" in named for i in range(self.bottom_count))
        self.lost = sorted(f"x{i}" for i in range(self.bottom_count) if f"x{i}" in named)

    def build(self, build: Build, bottoms: list, blobs: list) -> tuple:
        backward = "" if self.in_place and self.lost else self.backward_text
        return expressions.with_own_gradient(build, self.forward_text, backward, bottoms, self.top_count, self.scalars)

    def expect_gradients(self, propagate_down: Any) -> None:
        for i, is_stated in enumerate(self.stated):
            if propagate_down[i] and not is_stated:
                expected = f"an assignment to dx{i}: the net learns through it"
                self.expect(False, f"backward {self.backward_text!r}", expected)
        lost = self.in_place and self.lost and any(propagate_down[i] for i in range(self.bottom_count))
        self.expect(not lost, f"a layer in place whose backward reads {self.lost}", "only y and dy: x is overwritten")
