"""Batch norm, with the attributes, the auxiliary states and the conventions of MXNet's BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.batchnorm import FOLLOWING as CORE_FOLLOWING
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import NORM, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register
from clgraft.mxnet_ops.operators.activation import FUNCTIONS

FOLLOWING = tuple(name for name, (found, _) in FUNCTIONS.items() if found in CORE_FOLLOWING)
DEFAULT_EPS = float(np.float32(1e-3))  # as MXNet stores it


@register
@dataclass(frozen=True)
class BatchNorm(Operator):
    """``ocl_batchnorm``: data (..., C, ...), gamma, beta and the auxiliary moving_mean and moving_var (C,).

    Parameters
    ----------
    eps, momentum : float
        Added to the variance; share of the moving statistics that an update keeps. 1e-3 and 0.9 by default.
    fix_gamma : bool
        Take gamma as 1 and its gradient as 0. True by default; unlike MXNet's own, gamma's array is left as it is.
    use_global_stats : bool
        Use the moving statistics in training too.
    output_mean_var : bool
        Two more outputs, as MXNet's own: the mean, and the *inverse standard deviation*. No gradient flows back.
    axis : int
        Of the channels.
    act_type : str
        ``relu relu_keep_nan leaky clip``: the output is this activation of the norm, at no further pass over memory;
        its attributes are those of ``ocl_activation``. ``none`` by default.

    Notes
    -----
    The moving statistics are updated once per backward, with the biased variance, as by MXNet's own operator.
    """

    op_type: ClassVar[str] = "ocl_batchnorm"
    vectors: ClassVar[frozenset[str]] = frozenset({"gamma", "beta"})
    chain_place: ClassVar[int] = NORM
    single_names: ClassVar[frozenset[str]] = frozenset(("gamma", "beta", "moving_mean", "moving_var", "mean", "var"))

    eps: float
    momentum: float
    fix_gamma: bool
    use_global_stats: bool
    output_mean_var: bool
    axis: int
    act_type: str = "none"
    scalars: tuple[float, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("data", "gamma", "beta")

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("output", "mean", "var") if self.output_mean_var else ("output",)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return ("moving_mean", "moving_var")

    @classmethod
    def read(cls, attributes: Attributes) -> BatchNorm:
        act_type = attributes.choice("act_type", sorted(("none", *FOLLOWING)), "none")
        operator = cls(
            eps=attributes.number("eps", DEFAULT_EPS),
            momentum=attributes.number("momentum", 0.9),
            fix_gamma=attributes.flag("fix_gamma", True),
            use_global_stats=attributes.flag("use_global_stats", False),
            output_mean_var=attributes.flag("output_mean_var", False),
            axis=attributes.integer("axis", 1),
            act_type=act_type,
            scalars=tuple(attributes.number(*scalar) for scalar in FUNCTIONS[act_type][1])
            if act_type != "none"
            else (),
        )
        attributes.ignore("cudnn_off", "min_calib_range", "max_calib_range")
        if act_type != "none":
            attributes.ignore("slope", "lower_bound", "upper_bound")
        if not operator.eps >= 0:
            raise attributes.error("eps", operator.eps, "a number from 0")
        return operator

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if not -len(data) <= self.axis < len(data):
            raise self.error("axis", self.axis, f"an axis of data of shape {data}")
        vector = (data[self.axis],)
        needed = [data, vector, vector]
        self.agree(shapes, needed)
        return needed, [data, vector, vector][: len(self.outputs)], [vector, vector]

    def build(
        self, build: Build, data: Tensor, gamma: Tensor, beta: Tensor, moving_mean: Tensor, moving_var: Tensor
    ) -> tuple[Tensor, ...]:
        moving, axis = (moving_mean, moving_var), self.axis % data.ndim
        through = build.training and not self.use_global_stats
        normed = norms.batch_norm(
            build,
            data,
            None if self.fix_gamma else gamma,
            beta,
            None if through else moving,
            eps=self.eps,
            axis=axis,
            activation=FUNCTIONS[self.act_type][0] if self.act_type != "none" else "",
            activation_scalars=self.scalars,
        )
        if through:
            shares = norms.shares(keep=self.momentum, in_single=True)
            with build.after_backward(data, gamma, beta):
                norms.update_averages(build, data, normed, moving, **shares, axis=axis)
        if not self.output_mean_var:
            return (normed.y,)
        more = norms.mean_and_inverse(build, normed, eps=self.eps)
        return (normed.y, *(build.without_gradient(one) for one in more))
