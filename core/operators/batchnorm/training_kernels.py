"""What written kernels of a training batch norm take: tensors, and macros for the activation after the norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from clgraft.core.operators.batchnorm.generated import activated_text, flow_text
from clgraft.core.operators.batchnorm.problem import KEPT, BatchNormProblem
from clgraft.core.operators.pointwise.expression import read_assignments
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Accumulate, Buffer, Constant


class TrainingKernels:
    """The arguments and macros of the kernels for one problem (see kernels/batchnorm/activation.cl).

    Attributes
    ----------
    forward : bool
    real : str
        The dtype of arithmetic.
    inputs, outputs : tuple of str
        Arguments of the problem in the order of the kernels' parameters.
    kept : tuple of str
        The arguments that lead from forward to backward if an activation follows.
    defines : dict
        Macros of all kernels.
    """

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        self.problem, self.planner = problem, planner
        self.defines: dict[str, Any] = {"REAL_PARAMETERS": 1} if problem.float32_parameters else {}
        self.forward = problem.direction == "forward_training"
        self.real = "float64" if problem.dtype == "float64" else "float32"
        self.inputs: tuple[str, ...] = ("x", "gamma", "beta") if self.forward else ("x", "dy", "gamma", "mean", "var")
        self.outputs: tuple[str, ...] = ("y", "mean", "var") if self.forward else ("dx", "dgamma", "dbeta")
        self.kept: tuple[str, ...] = ()
        if problem.residual:
            self.defines["RESIDUAL"] = 1
            self.inputs += ("residual",)
        if problem.bias:
            self.defines["BIAS"] = 1
            self.outputs += ("dbias",)
        if not problem.activation:
            return
        self.kept, scalars = () if problem.residual else tuple(KEPT.split()), problem.activation_scalars
        self.defines["SCALARS(F)"] = " ".join(f"F({name})" for name in scalars)
        if self.forward:
            self.outputs += self.kept
            text = f"{activated_text(problem.activation, 'x0')} y0 = y;"
            self.defines["ACTIVATE"] = read_assignments(text, 1, scalars).c_text((0,))
        else:
            self.inputs += self.kept
            leading, flow = flow_text(problem.activation, "x1")
            self.defines["FLOW"] = read_assignments(f"real dy = x0; {leading}y0 = {flow};", 2, scalars).c_text((0,))

    def number(self, value: float) -> Constant:
        """Return a constant of the arithmetic's type."""
        return Constant(np.dtype(self.real).type(value))

    def tensors(self) -> list[Any]:
        """Return the arguments that every kernel which writes results begins with: inputs, and outputs with modes."""
        bound: list[Any] = [Buffer(name) for name in self.inputs]
        return bound + [argument for name in self.outputs for argument in (Buffer(name), Accumulate(name))]
