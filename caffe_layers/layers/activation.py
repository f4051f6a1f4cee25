"""Activation layers: each reads its parameters and takes its function, and the gradient by `LEFT`, from the core."""

from __future__ import annotations

from typing import Any, ClassVar

from clgraft.caffe_layers.layers import fillers
from clgraft.caffe_layers.layers.built import BuiltLayer
from clgraft.core.nn import activations, element_functions
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import LEFT, SELECT, Function, find

E = -1  # Caffe's sign for the base e


class Activation(BuiltLayer):
    """A function of each element.

    Attributes
    ----------
    formula : Function
        What `function` returns.
    way : str
        Its gradient.
    """

    way: ClassVar[str] = LEFT

    def configure(self, shapes: list) -> None:
        self.formula = self.function()

    def function(self) -> Function:
        """Return the function that the parameters describe."""
        raise NotImplementedError

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        return activations.applied(build, bottoms[0], self.formula, self.way)


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


class OclReLU6(Activation):
    """``x``, at least 0 and at most 6, a layer of forks; the gradient at both is 0."""

    word: ClassVar[str] = "relu6"
    way: ClassVar[str] = SELECT

    def function(self) -> Function:
        slope = self.parameters.relu6_param.negative_slope
        self.expect(slope == 0, f"negative_slope {slope}", "0")
        return find("clip").given(low=0.0, high=6.0)


class OclThreshold(Activation):
    """1 above `threshold`, 0 elsewhere. It has no gradient, as in Caffe."""

    word: ClassVar[str] = "threshold"

    def function(self) -> Function:
        return find("threshold").given(threshold=self.parameters.threshold_param.threshold)

    def expect_gradients(self, propagate_down: Any) -> None:
        self.expect(not propagate_down[0], "a gradient to propagate", "none: a threshold has no slope")


class OclPReLU(BuiltLayer):
    """ReLU with a learned slope for negative values; blob slope (C), or of one value if `channel_shared`."""

    word: ClassVar[str] = "prelu"

    def configure(self, shapes: list) -> None:
        given = self.parameters.prelu_param
        self.expect(len(shapes[0]) >= 2, f"shape {shapes[0]}", "at least 2 axes")
        self.slopes = 1 if given.channel_shared else shapes[0][1]
        self.make_blobs(
            (() if given.channel_shared else (self.slopes,), fillers.given_or(given, "filler", 0.25)),
        )

    def prepare(self, shapes: list) -> list:
        shape = shapes[0]
        self.expect(self.slopes in (1, shape[1]), f"{shape[1]} channels", self.slopes)
        return super().prepare(shapes)

    def build(self, build: Build, bottoms: list, blobs: list) -> Tensor:
        (x,), (slope,) = bottoms, blobs
        return activations.prelu_along(build, x, slope, 1, LEFT)
