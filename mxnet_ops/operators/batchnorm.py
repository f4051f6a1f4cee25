"""Batch norm, with the attributes, the auxiliary states and the conventions of MXNet's BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft import core
from clgraft.core.operators.batchnorm.problem import FOLLOWING as CORE_FOLLOWING
from clgraft.core.operators.pointwise.formulas import norms
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import (
    AUX,
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    Call,
    Graft,
    Operator,
    Shape,
    Shapes,
)
from clgraft.mxnet_ops.engine.registration import register
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

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        data = shapes[0]
        axis = self.axis % len(data)
        channels = data[axis]
        activation = FUNCTIONS[self.act_type][0] if self.act_type != "none" else ""
        sizes = (math.prod(data[:axis]), channels, math.prod(data[axis + 1 :]), dtype)
        x, beta, y, dy = (IN, 0), (IN, 2), (OUT, 0), (OUT_GRAD, 0)
        batch, moving = ((STATE, 0), (STATE, 1)), ((AUX, 0), (AUX, 1))
        gamma = (STATE, 2) if self.fix_gamma else (IN, 1)
        kept = ((STATE, 3), (STATE, 4), (STATE, 5)) if activation else ()
        known = (gamma, beta) if activation else (gamma,)
        gradients = ((IN_GRAD, 0), None if self.fix_gamma else (IN_GRAD, 1), (IN_GRAD, 2))
        eps = (self.eps,)

        def call(direction: str, *arrays: tuple[int, int] | None) -> Call:
            return Call(core.BatchNormProblem(direction, *sizes, activation), arrays, (*eps, *self.scalars))

        def statistics(mean: tuple[int, int], var: tuple[int, int]) -> tuple[Call, ...]:
            if not self.output_mean_var:
                return ()
            problem = norms.mean_and_inverse_deviation(channels, dtype)
            return (Call(problem, (mean, var, (OUT, 1), (OUT, 2)), eps),)

        inference = (call("forward_inference", x, gamma, beta, *moving, y), *statistics(*moving))
        constant = (call("backward_inference", x, dy, *known, *moving, *gradients),)
        training = (call("forward_training", x, gamma, beta, y, *batch, *kept), *statistics(*batch))
        # MXNet keeps momentum in single precision, whatever the dtype of the data
        momentum = np.float32(self.momentum)
        keep, rest = float(momentum), float(np.float32(1) - momentum)
        through: tuple[Call, ...] = (
            call("backward_training", x, dy, gamma, *batch, *kept, *gradients),
            Call(core.BatchNormProblem("update_statistics", *sizes), (*batch, *moving), (keep, rest, rest)),
        )
        if self.use_global_stats:
            training, through = inference, constant
        vector = (channels,)
        return Graft(
            {True: training, False: inference},
            {True: through, False: constant},
            (
                (vector, dtype, 0.0),
                (vector, dtype, 0.0),
                (vector, dtype, 1.0),
                *((vector, "float64" if dtype == "float64" else "float32", 0.0) for _ in kept),
            ),
            self.zero_gradients(channels, dtype),
        )

    def zero_gradients(self, channels: int, dtype: str) -> tuple[tuple[int, int], ...]:
        """Return gamma's gradient as one that is zero, if gamma is fixed."""
        nbytes = core.Argument("dgamma", "out", (channels,), dtype).nbytes
        return ((1, nbytes),) if self.fix_gamma else ()
