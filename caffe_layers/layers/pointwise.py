"""OclPointwise: a layer that computes the user's own expression."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from clgraft.caffe_layers.layers import expression_plans
from clgraft.caffe_layers.layers.layer import MANY, OclLayer, buffer
from clgraft.caffe_layers.prototxt import schema
from clgraft.caffe_layers.prototxt.marks import without_marks
from clgraft.core.errors import ProblemError

OUTPUT = re.compile(r"\by(\d+)\s*=(?!=)")
FIELDS = ("forward", "backward", "scalars", "name")


class OclPointwise(OclLayer):
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
        self.tops_named = [f"y{i}" for i in wanted]

    def prepare(self, shapes: list) -> list:
        self.inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
        self.backward_plans: dict = {}
        outputs = dict.fromkeys(self.tops_named)
        self.forward_plan = self.plan(self.forward_text, self.inputs, outputs)
        self.common = self.forward_plan.plan.problem.common_shape
        return [self.common] * len(outputs)

    def plan(self, text: str, inputs: dict, outputs: dict) -> expression_plans.ExpressionPlan:
        """Plan a text with the scalars that it uses."""
        names = [name for name in self.scalars if name in expression_plans.names_in(text)]
        return expression_plans.make(self.context, text, inputs, outputs, names)

    def run(self, planned: expression_plans.ExpressionPlan, buffers: dict) -> None:
        """Run a plan with its scalars."""
        planned.run(buffers, [self.scalars[name] for name in planned.plan.scalars])

    def compute(self, bottom: Any, top: Any) -> None:
        buffers = {f"x{i}": buffer(bottom[i].data) for i in range(self.bottom_count)}
        buffers.update({name: buffer(top[i].data) for i, name in enumerate(self.tops_named)})
        self.run(self.forward_plan, buffers)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = tuple(i for i in range(self.bottom_count) if propagate_down[i])
        if not wanted:
            return
        if wanted not in self.backward_plans:
            self.backward_plans[wanted] = self.plan_backward(wanted)
        buffers = {f"dx{i}": buffer(bottom[i].diff) for i in wanted}
        for i in range(self.bottom_count):
            buffers[f"x{i}"] = buffer(bottom[i].data)
        for i in range(self.top_count):
            buffers[f"y{i}"], buffers[f"dy{i}"] = buffer(top[i].data), buffer(top[i].diff)
        self.run(self.backward_plans[wanted], buffers)

    def plan_backward(self, wanted: tuple) -> expression_plans.ExpressionPlan:
        """Plan the gradients of some of the bottoms."""
        names = expression_plans.names_in(self.backward_text)
        for i in wanted:
            expected = f"an assignment to dx{i}: the net learns through it"
            self.expect(f"dx{i}" in names, f"backward {self.backward_text!r}", expected)
        lost = sorted(names & set(self.inputs)) if self.in_place else []
        self.expect(not lost, f"a layer in place whose backward reads {lost}", "only y and dy: x is overwritten")
        inputs = dict(self.inputs)
        for i in range(self.top_count):
            inputs[f"y{i}"] = inputs[f"dy{i}"] = self.common
        outputs = {f"dx{i}": None if self.inputs[f"x{i}"] == self.common else self.inputs[f"x{i}"] for i in wanted}
        return self.plan(self.backward_text, inputs, outputs)
