"""Activation layers: each reads its parameters and takes its function, and the gradient by `LEFT`, from the core."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from clgraft import core
from clgraft.caffe_layers.layers import expression_plans, fillers
from clgraft.caffe_layers.layers.layer import OclLayer, buffer
from clgraft.core.nn import element_functions
from clgraft.core.nn.element_functions import LEFT, SLOPE_GRADIENTS, Function, find
from clgraft.core.nn.formulas import assigned

E = -1  # Caffe's sign for the base e
KEEP = " kept = x;"  # a layer in place overwrites what its gradient reads


class Activation(OclLayer):
    """A function of each element.

    Attributes
    ----------
    formula : Function
        What `function` returns; its scalars are passed with every run.
    """

    def configure(self, shapes: list) -> None:
        self.formula = self.function()

    def function(self) -> Function:
        """Return the function that the parameters describe."""
        raise NotImplementedError

    def prepare(self, shapes: list) -> list:
        self.forward_plan: expression_plans.ExpressionPlan | None = None
        self.backward_plan: expression_plans.ExpressionPlan | None = None
        self.count = math.prod(shapes[0])
        return shapes

    def scalars_of(self, text: str) -> list:
        """Return the names of the scalars that a text uses."""
        return [name for name in self.formula.scalars if name in expression_plans.names_in(text)]

    def plan_forward(self) -> expression_plans.ExpressionPlan:
        """Plan on first use: only then it is known whether the layer works in place."""
        text, outputs = assigned("y", self.formula.value), {"y": None}
        self.saves = self.formula.keeps_x(LEFT) and self.in_place
        if self.saves:
            text, outputs = text + KEEP, {"y": None, "kept": None}
            self.kept = self.array((self.count,))
        names = self.scalars_of(text)
        self.forward_plan = expression_plans.make(self.context, text, {"x": (self.count,)}, outputs, names)
        self.forward_scalars = [self.formula.scalars[name] for name in names]
        return self.forward_plan

    def compute(self, bottom: Any, top: Any) -> None:
        planned = self.forward_plan or self.plan_forward()
        buffers = {"x": buffer(bottom[0].data), "y": buffer(top[0].data)}
        if self.saves:
            buffers["kept"] = buffer(self.kept)
        planned.run(buffers, self.forward_scalars)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        planned = self.backward_plan or self.plan_backward()
        buffers = {"dy": buffer(top[0].diff), "dx": buffer(bottom[0].diff)}
        if "x" in planned.names:
            buffers["x"] = buffer(self.kept if self.saves else bottom[0].data)
        if "y" in planned.names:
            buffers["y"] = buffer(top[0].data)
        planned.run(buffers, self.backward_scalars)

    def plan_backward(self) -> expression_plans.ExpressionPlan:
        """Plan on first use: a net that only predicts never does."""
        text = assigned("dx", self.formula.gradient(LEFT))
        names = self.scalars_of(text)
        shapes = {name: (self.count,) for name in ("x", "y", "dy")}
        self.backward_plan = expression_plans.make(self.context, text, shapes, {"dx": None}, names)
        self.backward_scalars = [self.formula.scalars[name] for name in names]
        return self.backward_plan


class OclReLU(Activation):
    """``max(x, 0) + negative_slope * min(x, 0)``; the gradient at 0 is the slope."""

    word: ClassVar[str] = "relu"

    def function(self) -> Function:
        return find("leaky_relu").given(slope=self.parameters.relu_param.negative_slope)


class OclELU(Activation):
    """``x`` above 0, ``alpha (exp(x) - 1)`` elsewhere."""

    word: ClassVar[str] = "elu"

    def function(self) -> Function:
        return find("elu").given(alpha=self.parameters.elu_param.alpha)


class OclSigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    word: ClassVar[str] = "sigmoid"

    def function(self) -> Function:
        return find("sigmoid")


class OclTanH(Activation):
    """``tanh(x)``."""

    word: ClassVar[str] = "tanh"

    def function(self) -> Function:
        return find("tanh")


class OclAbsVal(Activation):
    """``|x|``; the gradient at 0 is 0. Working in place is refused, as in Caffe."""

    word: ClassVar[str] = "absval"
    may_be_in_place: ClassVar[bool] = False

    def function(self) -> Function:
        return find("abs")


class OclPower(Activation):
    """``(shift + scale x) ^ power``.

    The gradient is ``power scale (shift + scale x) ^ (power - 1)`` everywhere; Caffe's divides y by the base and is NaN
    where that is 0.
    """

    word: ClassVar[str] = "power"

    def function(self) -> Function:
        given = self.parameters.power_param
        return element_functions.scaled_power(given.power, given.scale, given.shift)


class OclExp(Activation):
    """``base ^ (shift + scale x)``; base -1 stands for e."""

    word: ClassVar[str] = "exp"

    def function(self) -> Function:
        given = self.parameters.exp_param
        self.expect(given.base > 0 or given.base == E, f"base {given.base}", "a number above 0, or -1 for e")
        return element_functions.exponential(base_of(given), given.scale, given.shift)


class OclLog(Activation):
    """Logarithm of ``shift + scale x``; base -1 stands for e."""

    word: ClassVar[str] = "log"

    def function(self) -> Function:
        given = self.parameters.log_param
        good = given.base == E or (given.base > 0 and given.base != 1)
        self.expect(good, f"base {given.base}", "a number above 0 and not 1, or -1 for e")
        return element_functions.logarithm(base_of(given), given.scale, given.shift)


def base_of(given: Any) -> float | None:
    """Return the base of `exp_param` or `log_param`, None for e."""
    return None if given.base == E else float(given.base)


class OclBNLL(Activation):
    """``log(1 + exp(x))``."""

    word: ClassVar[str] = "bnll"

    def function(self) -> Function:
        return find("bnll")


class OclSwish(Activation):
    """``x / (1 + exp(-beta x))``."""

    word: ClassVar[str] = "swish"

    def function(self) -> Function:
        return find("swish").given(beta=self.parameters.swish_param.beta)


class OclClip(Activation):
    """``x``, at least `min` and at most `max`; the gradient at both is 1."""

    word: ClassVar[str] = "clip"

    def function(self) -> Function:
        given = self.parameters.clip_param
        there = given.HasField("min") and given.HasField("max")
        self.expect(there and given.min <= given.max, f"clip_param {{ {given} }}".replace("\n", " "), "min and max")
        return find("clip").given(low=given.min, high=given.max)


class OclThreshold(Activation):
    """1 above `threshold`, 0 elsewhere. It has no gradient, as in Caffe."""

    word: ClassVar[str] = "threshold"

    def function(self) -> Function:
        return find("threshold").given(threshold=self.parameters.threshold_param.threshold)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self.expect(not propagate_down[0], "a gradient to propagate", "none: a threshold has no slope")


class OclPReLU(OclLayer):
    """ReLU with a learned slope for negative values; blob slope (C), or of one value if `channel_shared`."""

    word: ClassVar[str] = "prelu"

    def configure(self, shapes: list) -> None:
        rectifier = find("leaky_relu")
        self.forward_text = assigned("y", rectifier.value) + KEEP
        self.backward_text = f"{assigned('dx', rectifier.gradient(LEFT))} {assigned('dslope', SLOPE_GRADIENTS[LEFT])}"
        given = self.parameters.prelu_param
        self.expect(len(shapes[0]) >= 2, f"shape {shapes[0]}", "at least 2 axes")
        self.slopes = 1 if given.channel_shared else shapes[0][1]
        self.make_blobs(
            (() if given.channel_shared else (self.slopes,), fillers.given_or(given, "filler", 0.25)),
        )

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(self.slopes in (1, shape[1]), f"{shape[1]} channels", self.slopes)
        self.shape = (shape[0], shape[1], math.prod(shape[2:]))
        self.plans: dict = {}
        self.kept: Any = None
        return shapes

    def planned(self, text: str, *outputs: str) -> expression_plans.ExpressionPlan:
        """Plan on first use."""
        if outputs not in self.plans:
            slope = (1, self.slopes, 1)
            inputs = {"x": self.shape, "dy": self.shape, "slope": slope}
            wanted = {name: slope if name == "dslope" else None for name in outputs}
            self.plans[outputs] = expression_plans.make(self.context, text, inputs, wanted)
        return self.plans[outputs]

    def compute(self, bottom: Any, top: Any) -> None:
        buffers = {"x": buffer(bottom[0].data), "slope": buffer(self.blobs[0].data), "y": buffer(top[0].data)}
        outputs = ["y"]
        if self.in_place:
            if self.kept is None:
                self.kept = self.array(self.shape)
            buffers["kept"] = buffer(self.kept)
            outputs.append("kept")
        self.planned(self.forward_text, *outputs).run(buffers)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        wanted = ["dx"] * bool(propagate_down[0]) + ["dslope"] * self.learns(0)
        if not wanted:
            return
        slope = self.blobs[0]
        buffers = {
            "x": buffer(self.kept if self.in_place else bottom[0].data),
            "dy": buffer(top[0].diff),
            "slope": buffer(slope.data),
            "dx": buffer(bottom[0].diff),
            "dslope": buffer(slope.diff, core.ACCUMULATE),
        }
        self.planned(self.backward_text, *wanted).run(buffers)
