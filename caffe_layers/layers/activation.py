"""Activation layers: each is a formula, its gradient, and which values the gradient reads."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from clgraft import core
from clgraft.caffe_layers.layers import fillers, programs
from clgraft.caffe_layers.layers.layer import OclLayer, buffer


class Activation(OclLayer):
    """A function of each element.

    Attributes
    ----------
    forward_text : str
        Assigns y from x.
    backward_text : str
        Assigns dx from dy and from x or y.
    keeps_x : bool
        Whether a layer in place has to keep x to differentiate. Where it is false although the gradient reads x, y
        serves as well (ReLU: both have the same sign).
    scalars : dict of str to float
        Set by `configure`; named in both texts.
    """

    forward_text: str
    backward_text: str
    keeps_x: bool = False

    def configure(self, shapes: list) -> None:
        self.scalars = self.read_scalars()
        self.kept = np.empty(0, np.float32)

    def read_scalars(self) -> dict:
        """Give the scalars of both texts."""
        return {}

    def prepare(self, shapes: list) -> list:
        self.forward_program: programs.Program | None = None
        self.backward_program: programs.Program | None = None
        self.count = math.prod(shapes[0])
        return shapes

    def scalars_of(self, text: str) -> list:
        """Give the names of the scalars that a text uses."""
        return [name for name in self.scalars if name in programs.names_in(text)]

    def plan_forward(self) -> programs.Program:
        """Plan on first use: only then it is known whether the layer works in place."""
        text, outputs = self.forward_text, {"y": None}
        self.saves = self.keeps_x and self.in_place
        if self.saves:
            text, outputs = text + " kept = x;", {"y": None, "kept": None}
            self.kept = np.empty(self.count, np.float32)
        names = self.scalars_of(text)
        self.forward_program = programs.make(self.context, text, {"x": (self.count,)}, outputs, names)
        self.forward_scalars = [self.scalars[name] for name in names]
        return self.forward_program

    def compute(self, bottom: Any, top: Any) -> None:
        program = self.forward_program or self.plan_forward()
        buffers = {"x": buffer(bottom[0].data), "y": buffer(top[0].data)}
        if self.saves:
            buffers["kept"] = buffer(self.kept)
        program.run(buffers, self.forward_scalars)

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if not propagate_down[0]:
            return
        program = self.backward_program or self.plan_backward()
        buffers = {"dy": buffer(top[0].diff), "dx": buffer(bottom[0].diff)}
        if "x" in program.names:
            buffers["x"] = buffer(self.kept if self.saves else bottom[0].data)
        if "y" in program.names:
            buffers["y"] = buffer(top[0].data)
        program.run(buffers, self.backward_scalars)

    def plan_backward(self) -> programs.Program:
        """Plan on first use: a net that only predicts never does."""
        names = self.scalars_of(self.backward_text)
        shapes = {name: (self.count,) for name in ("x", "y", "dy")}
        self.backward_program = programs.make(self.context, self.backward_text, shapes, {"dx": None}, names)
        self.backward_scalars = [self.scalars[name] for name in names]
        return self.backward_program


class OclReLU(Activation):
    """``max(x, 0) + negative_slope * min(x, 0)``; the gradient at 0 is the slope."""

    word: ClassVar[str] = "relu"
    forward_text = "y = x > 0 ? x : slope * x;"
    backward_text = "dx = dy * (x > 0 ? 1 : x <= 0 ? slope : 0);"

    def read_scalars(self) -> dict:
        return {"slope": self.parameters.relu_param.negative_slope}


class OclELU(Activation):
    """``x`` above 0, ``alpha (exp(x) - 1)`` elsewhere."""

    word: ClassVar[str] = "elu"
    forward_text = "y = x > 0 ? x : alpha * expm1(x);"
    backward_text = "dx = dy * (x > 0 ? 1 : x <= 0 ? alpha + y : 0);"

    def read_scalars(self) -> dict:
        return {"alpha": self.parameters.elu_param.alpha}


class OclSigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    word: ClassVar[str] = "sigmoid"
    forward_text = "y = 1 / (1 + exp(-x));"
    backward_text = "dx = dy * y * (1 - y);"


class OclTanH(Activation):
    """``tanh(x)``."""

    word: ClassVar[str] = "tanh"
    forward_text = "y = tanh(x);"
    backward_text = "dx = dy * (1 - y * y);"


class OclAbsVal(Activation):
    """``|x|``; the gradient at 0 is 0. In place it is refused, as natively."""

    word: ClassVar[str] = "absval"
    may_be_in_place: ClassVar[bool] = False
    forward_text = "y = fabs(x);"
    backward_text = "dx = dy * (x > 0 ? 1 : x < 0 ? -1 : 0);"


class OclPower(Activation):
    """``(shift + scale x) ^ power``.

    The gradient is ``power scale (shift + scale x) ^ (power - 1)`` everywhere; the native one divides y by the base
    and is NaN where that is 0.
    """

    word: ClassVar[str] = "power"
    keeps_x = True

    def read_scalars(self) -> dict:
        given = self.parameters.power_param
        base = "(shift + scale * x)"
        if given.power == 1:
            self.forward_text, self.backward_text, self.keeps_x = f"y = {base};", "dx = dy * scale;", False
        elif given.power == 2:
            self.forward_text = f"y = {base} * {base};"
            self.backward_text = f"dx = dy * 2 * scale * {base};"
        elif given.power * given.scale == 0:
            self.forward_text, self.backward_text, self.keeps_x = "y = 0 * x + level;", "dx = 0 * dy;", False
            return {"level": 1.0 if given.power == 0 else given.shift**given.power}
        else:
            self.forward_text = f"y = pow({base}, power);"
            self.backward_text = f"dx = dy * power * scale * pow({base}, power - 1);"
        return {"shift": given.shift, "scale": given.scale, "power": given.power}


class OclExp(Activation):
    """``base ^ (shift + scale x)``; base -1 stands for e."""

    word: ClassVar[str] = "exp"
    forward_text = "y = factor * exp(rate * x);"
    backward_text = "dx = dy * rate * y;"

    def read_scalars(self) -> dict:
        given = self.parameters.exp_param
        self.expect(given.base > 0 or given.base == -1, f"base {given.base}", "a number above 0, or -1 for e")
        logarithm = log_of(given.base)
        return {
            "rate": logarithm * given.scale,
            "factor": math.exp(logarithm * given.shift),
        }


class OclLog(Activation):
    """Logarithm of ``shift + scale x``; base -1 stands for e."""

    word: ClassVar[str] = "log"
    keeps_x = True
    forward_text = "y = factor * log(shift + scale * x);"
    backward_text = "dx = dy * factor * scale / (shift + scale * x);"

    def read_scalars(self) -> dict:
        given = self.parameters.log_param
        good = given.base == -1 or (given.base > 0 and given.base != 1)
        self.expect(good, f"base {given.base}", "a number above 0 and not 1, or -1 for e")
        return {"factor": 1 / log_of(given.base), "shift": given.shift, "scale": given.scale}


def log_of(base: float) -> float:
    """Give the natural logarithm of a base, -1 standing for e."""
    return 1.0 if base == -1 else math.log(base)


class OclBNLL(Activation):
    """``log(1 + exp(x))``."""

    word: ClassVar[str] = "bnll"
    keeps_x = True
    forward_text = "y = fmax(x, 0) + log1p(exp(-fabs(x)));"
    backward_text = "dx = dy / (1 + exp(-x));"


class OclSwish(Activation):
    """``x / (1 + exp(-beta x))``."""

    word: ClassVar[str] = "swish"
    keeps_x = True
    forward_text = "y = x / (1 + exp(-beta * x));"
    backward_text = "real s = 1 / (1 + exp(-beta * x)); dx = dy * (s + beta * x * s * (1 - s));"

    def read_scalars(self) -> dict:
        return {"beta": self.parameters.swish_param.beta}


class OclClip(Activation):
    """``x``, at least `min` and at most `max`; the gradient at both is 1."""

    word: ClassVar[str] = "clip"
    keeps_x = True
    forward_text = "y = x < low ? low : x > high ? high : x;"
    backward_text = "dx = dy * (x >= low && x <= high);"

    def read_scalars(self) -> dict:
        given = self.parameters.clip_param
        there = given.HasField("min") and given.HasField("max")
        self.expect(there and given.min <= given.max, f"clip_param {{ {given} }}".replace("\n", " "), "min and max")
        return {"low": given.min, "high": given.max}


class OclThreshold(Activation):
    """1 above `threshold`, 0 elsewhere. It has no gradient, as natively."""

    word: ClassVar[str] = "threshold"
    forward_text = "y = x > threshold ? 1 : 0;"
    backward_text = ""

    def read_scalars(self) -> dict:
        return {"threshold": self.parameters.threshold_param.threshold}

    def differentiate(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self.expect(not propagate_down[0], "a gradient to propagate", "none: a threshold has no slope")


class OclPReLU(OclLayer):
    """ReLU with a learned slope for negative values; blob slope (C), or of one value if `channel_shared`."""

    word: ClassVar[str] = "prelu"
    forward_text = "y = x > 0 ? x : slope * x; kept = x;"
    backward_text = "dx = dy * (x > 0 ? 1 : x <= 0 ? slope : 0); dslope = x <= 0 ? dy * x : 0;"

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
        self.shape = (shape[0], shape[1], math.prod(shape[2:]))
        self.plans: dict = {}
        self.kept: Any = None
        return shapes

    def program(self, text: str, *outputs: str) -> programs.Program:
        """Plan on first use."""
        if outputs not in self.plans:
            slope = (1, self.slopes, 1)
            inputs = {"x": self.shape, "dy": self.shape, "slope": slope}
            wanted = {name: slope if name == "dslope" else None for name in outputs}
            self.plans[outputs] = programs.make(self.context, text, inputs, wanted)
        return self.plans[outputs]

    def compute(self, bottom: Any, top: Any) -> None:
        buffers = {"x": buffer(bottom[0].data), "slope": buffer(self.blobs[0].data), "y": buffer(top[0].data)}
        outputs = ["y"]
        if self.in_place:
            if self.kept is None:
                self.kept = np.empty(self.shape, np.float32)
            buffers["kept"] = buffer(self.kept)
            outputs.append("kept")
        self.program(self.forward_text, *outputs).run(buffers)

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
        self.program(self.backward_text, *wanted).run(buffers)
