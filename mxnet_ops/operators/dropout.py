"""Dropout, with the attributes of MXNet's Dropout and random numbers of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clgraft.core import DropoutProblem
from clgraft.core.nn import activations
from clgraft.core.operators.dropout.problem import KEY_WORDS
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import (
    IN,
    IN_GRAD,
    OUT,
    OUT_GRAD,
    STATE,
    Call,
    Draw,
    Graft,
    Operator,
    Shape,
    Shapes,
)
from clgraft.mxnet_ops.engine.registration import register

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

    def graft(self, shapes: tuple[Shape, ...], dtype: str) -> Graft:
        shape = shapes[0]
        mask = tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
        problem = DropoutProblem("forward", "dropout", shape, mask, dtype)
        keep = 1 - self.p
        rate = (keep, 1 / keep if keep else 0.0)
        forward = (Call(problem, ((IN, 0), (STATE, 0), (OUT, 0)), rate),)
        backward = (Call(problem.with_direction("backward"), ((OUT_GRAD, 0), (STATE, 0), (IN_GRAD, 0)), rate),)
        same = activations.forward("identity", shape, dtype)
        forward_same, backward_same = (Call(same, ((IN, 0), (OUT, 0))),), (Call(same, ((OUT_GRAD, 0), (IN_GRAD, 0))),)
        if self.p == 0:
            forward, backward = forward_same, backward_same
        always = self.mode == "always"
        return Graft(
            {True: forward, False: forward if always else forward_same},
            {True: backward, False: backward if always else backward_same},
            state=(((KEY_WORDS,), "int32", 0.0),),
            draw=Draw(0, self.seed, always),
        )
