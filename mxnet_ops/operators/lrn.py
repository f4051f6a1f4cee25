"""Local response normalisation, with the attributes of MXNet's LRN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clgraft.core.nn import norms
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

DEFAULT_ALPHA = float(np.float32(1e-4))  # as MXNet stores it


@register
@dataclass(frozen=True)
class LRN(Operator):
    """``ocl_lrn``: data (n, c, ...), divided by (knorm + alpha / nsize * sum of squares over nsize channels)^beta.

    Parameters
    ----------
    nsize : int
        Channels of the window. An even one reaches as far as the odd one below it, but divides alpha by itself: so does
        MXNet's.
    alpha, beta, knorm : float
        1e-4, 0.75 and 2 by default.

    Notes
    -----
    MXNet's own computes float32 of 4 axes only.
    """

    op_type: ClassVar[str] = "ocl_lrn"

    nsize: int
    alpha: float
    beta: float
    knorm: float

    @classmethod
    def read(cls, attributes: Attributes) -> LRN:
        operator = cls(
            nsize=attributes.integer("nsize", low=1),
            alpha=attributes.number("alpha", DEFAULT_ALPHA),
            beta=attributes.number("beta", 0.75),
            knorm=attributes.number("knorm", 2.0),
        )
        if not math.isfinite(operator.beta):
            raise attributes.error("beta", operator.beta, "a finite number")
        return operator

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if len(data) < 2:
            raise self.error("data", f"of shape {data}", "at least 2 axes, channels on axis 1")
        return [data], [data], []

    def build(self, build: Build, data: Tensor) -> Tensor:
        return norms.local_response_norm(
            build,
            data,
            size=self.nsize,
            alpha=self.alpha,
            beta=self.beta,
            k=self.knorm,
        )
