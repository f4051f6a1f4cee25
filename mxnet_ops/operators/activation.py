"""Activations: MXNet's Activation and LeakyReLU in one operator, and the other functions of one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import activations
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.element_functions import find
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import POINTWISE, Draw, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

# MXNet's act_type -> the core's name and the attributes that give its scalars in order, with MXNet's defaults
FUNCTIONS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "leaky": ("leaky_relu", (("slope", 0.25),)),
    "elu": ("elu", (("slope", 0.25),)),
    "clip": ("clip", (("a_min", 0.0), ("a_max", 6.0))),
    "hard_sigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "linear": ("linear", (("factor", 1.0), ("shift", 0.0))),
    "quotient": ("quotient", (("factor", 1.0),)),
    "at_least": ("at_least", (("level", 0.0),)),
    "at_most": ("at_most", (("level", 0.0),)),
    "smooth_l1": ("smooth_l1", (("sigma_squared", 1.0),)),
    "exp": ("scaled_exp", (("factor", 1.0), ("scale", 1.0))),
    "log": ("scaled_log", (("factor", 1.0), ("scale", 1.0), ("shift", 0.0))),
    "power": ("power", (("power", 1.0), ("scale", 1.0), ("shift", 0.0))),
}
BOUNDS = (("lower_bound", 0.125), ("upper_bound", 0.334))  # bounds of rrelu's slopes, with MXNet's defaults
_PLAIN = """relu relu_keep_nan sigmoid tanh softrelu softsign log_sigmoid selu gelu silu abs sign negative square sqrt
rsqrt reciprocal sin cos erf expm1 log1p identity"""
PLAIN = tuple(_PLAIN.split())
FUNCTIONS.update({name: (name, ()) for name in PLAIN})


@register
@dataclass(frozen=True)
class Activation(Operator):
    """``ocl_activation``: a function of every element.

    Parameters
    ----------
    act_type : str
        ``relu sigmoid tanh softrelu softsign log_sigmoid`` of MXNet's Activation (relu gives 0 for NaN), ``leaky elu
        selu gelu prelu rrelu`` of its LeakyReLU, ``relu_keep_nan`` (the operator ``relu``, which keeps NaN), ``clip``
        (a_min, a_max), ``hard_sigmoid`` (alpha, beta), ``exp log power`` and the functions of `PLAIN`.
    slope : float
        Of leaky and elu; 0.25 by default.
    lower_bound, upper_bound : float
        Of rrelu: slopes are random between them when training, their mean when not. 0.125 and 0.334 by default.
    seed : int
        Of rrelu, as of ``ocl_dropout``.

    Notes
    -----
    ``prelu`` has a second input gamma: (C,), C being axis 1 of data (of a vector its only one), (1,), of data's shape,
    or a shape that broadcasts to the first two axes of data.
    """

    op_type: ClassVar[str] = "ocl_activation"
    in_place: ClassVar[bool] = True
    chain_place: ClassVar[int] = POINTWISE

    act_type: str
    scalars: tuple[float, ...] = ()
    seed: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "gamma") if self.act_type == "prelu" else ("data",)

    @property
    def reads(self) -> tuple[str, ...]:
        """Which of x and y the gradient reads."""
        return ("x",) if self.act_type in ("prelu", "rrelu") else find(FUNCTIONS[self.act_type][0]).reads

    @property
    def backward_reads_outputs(self) -> bool:  # type: ignore[override]
        return "y" in self.reads

    @classmethod
    def read(cls, attributes: Attributes) -> Activation:
        act_type = attributes.choice("act_type", sorted((*FUNCTIONS, "prelu", "rrelu")))
        if act_type == "rrelu":
            attributes.ignore("slope")
            bounds = tuple(attributes.number(name, usual) for name, usual in BOUNDS)
            if bounds[0] > bounds[1]:
                raise attributes.error("lower_bound", bounds[0], f"at most upper_bound {bounds[1]}")
            seed = attributes.integer("seed", -1, low=0)
            return cls(act_type, bounds, None if seed < 0 else seed)
        attributes.ignore("lower_bound", "upper_bound")
        if act_type == "prelu":
            attributes.ignore("slope")
            return cls(act_type)
        scalars = tuple(attributes.number(name, usual) for name, usual in FUNCTIONS[act_type][1])
        attributes.ignore("slope")
        return cls(act_type, scalars)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if self.act_type != "prelu":
            return [data], [data], []
        if not data:
            raise self.error("data", f"of shape {data}", "at least 1 axis for prelu")
        channels = (data[self._channel_axis(data)],)
        gamma = shapes[1] or channels
        if gamma != data and activations.slopes_from_front(gamma, data) is None:
            expected = f"shape {channels}, (1,) or {data}, or one that broadcasts to {data[:2]}"
            raise self.error("gamma", f"of shape {gamma}", expected)
        return [data, gamma], [data], []

    @staticmethod
    def _channel_axis(data: Shape) -> int:
        return min(1, len(data) - 1)

    @property
    def draws(self) -> tuple[Draw, ...]:
        return (Draw(self.seed, False),) if self.act_type == "rrelu" else ()

    def build(self, build: Build, data: Tensor, *more: Tensor) -> Tensor:
        if self.act_type == "rrelu":
            return activations.random_slopes(build, data, more[0], (self.scalars[0], self.scalars[1]))
        if self.act_type == "prelu":
            axis, gamma = self._channel_axis(data.shape), more[0]
            slopes = activations.slopes_from_front(gamma.shape, data.shape)
            if slopes and gamma.shape not in ((1,), data.shape, (data.shape[axis],)):
                gamma = build.reshape(gamma, slopes)
            return activations.prelu(build, data, gamma, axis)
        return activations.activated(build, data, FUNCTIONS[self.act_type][0], self.scalars)
