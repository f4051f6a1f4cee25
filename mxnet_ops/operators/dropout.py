"""Dropout, with the attributes of MXNet's Dropout and random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core.nn import dropout
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Draw, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

MODES = ("training", "always")


@register
@dataclass(frozen=True)
class Dropout(Operator):
    """``ocl_dropout``: every element is multiplied by 1 / (1 - p), or by 0 with the probability p.

    Parameters
    ----------
    p : float
        From 0 to 1; 0.5 by default.
    mode : str
        ``training`` (default): the identity unless training; ``always``.
    axes : tuple of int
        Axes along which elements share a random number.
    seed : int
        Of this operator alone. By default the numbers follow ``mx.random.seed``.

    Notes
    -----
    The numbers are not those of MXNet's own operator, which differ from machine to machine; see
    `clgraft.core.DropoutProblem`. Backward draws them again instead of reading a mask.
    """

    op_type: ClassVar[str] = "ocl_dropout"
    in_place: ClassVar[bool] = True

    p: float
    mode: str
    axes: tuple[int, ...]
    seed: int | None

    @classmethod
    def read(cls, attributes: Attributes) -> Dropout:
        p = attributes.number("p", 0.5)
        if not 0 <= p <= 1:
            raise attributes.error("p", p, "a number from 0 to 1")
        seed = attributes.integer("seed", -1, low=0)
        attributes.ignore("cudnn_off")
        axes = attributes.sizes("axes", ())
        return cls(p, attributes.choice("mode", MODES, "training"), axes, None if seed < 0 else seed)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        data = shapes[0]
        if data is None:
            return None
        if any(axis >= len(data) for axis in self.axes):
            raise self.error("axes", self.axes, f"axes of data of shape {data}")
        return [data], [data], []

    @property
    def draw(self) -> Draw:
        return Draw(0, self.seed, self.mode == "always")

    def build(self, build: Build, data: Tensor, key: Tensor) -> Tensor:
        draws = (build.training or self.mode == "always") and self.p != 0
        return dropout.dropout(build, data, key, self.p, self.axes) if draws else dropout.same(build, data)
