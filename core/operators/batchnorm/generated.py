"""Batch norm out of generated loops: one pass over memory for the sums, one to apply them.

The training statistics come from one pass over x without losing digits where the mean is large: sums are taken of
x - shift, where shift is the mean of a sample of the channel. If the sample is the share f of the data, then
(mean - shift)^2 is at most (1/f - 1) times the variance: a sample far from the rest makes the variance large itself.
So no more than a factor 1/f of accuracy can be lost.

An activation after the norm costs no pass of its own: the gradient computes the norm's value again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clgraft.core.operators.batchnorm.following import ACTIVATIONS
from clgraft.core.operators.batchnorm.problem import IMAGES, KEPT, MOVED, BatchNormProblem
from clgraft.core.operators.pointwise.expression import read_assignments
from clgraft.core.operators.pointwise.generate import generate
from clgraft.core.operators.pointwise.loop import Loop, Operand, Result
from clgraft.core.operators.pointwise.problem import Reduction, read_fold
from clgraft.core.planning.implementation import Planner
from clgraft.core.planning.launches import Buffer, Launch, Launches, Workspace
from clgraft.core.problem import ceil_div, round_up

NAME = "generated"

SAMPLE = 16  # one value in this many makes the shift
LEAST_SAMPLE = 64  # values of an image, where it has so many
SUM = read_fold(Reduction("sum"))
NAME_OF_VALUE = re.compile(r"\b[xy]\b")


def plan(problem: BatchNormProblem, planner: Planner) -> Launches:
    """Plan a direction as a list of loops."""
    builder = _BatchNormBuilder(problem, planner)
    getattr(builder, problem.direction)()
    return Launches(tuple(builder.launches), builder.workspace)


def sample_size(problem: BatchNormProblem) -> tuple[int, int]:
    """Return how many images make the shift, and how many pixels of each: some whole images, or a part of one."""
    batch, _, pixels = problem.shape
    images = ceil_div(batch, SAMPLE)
    part = min(pixels, max(LEAST_SAMPLE, ceil_div(pixels * batch, SAMPLE))) if images == 1 else pixels
    return images, part


def activated_text(name: str, norm: str) -> str:
    """Return the text of y, an activation of the norm's value; without a name, y is that value."""
    if not name:
        return f"real y = {norm};"
    return f"real norm = {norm}; real y = {_of_norm(ACTIVATIONS[name].value)};"


def flow_text(name: str, norm: str) -> tuple[str, str]:
    """Return the text that leads from dy to the gradient of the norm's value, and that gradient's name."""
    if not name:
        return "", "dy"
    factor = _of_norm(ACTIVATIONS[name].slope)
    return f"{activated_text(name, norm)} real flow = dy * ({factor}); ", "flow"


def _of_norm(text: str) -> str:
    return NAME_OF_VALUE.sub(lambda found: "norm" if found[0] == "x" else "y", text)


class _BatchNormBuilder:
    """Collects loops over (batch, channels, pixels) and the per-channel workspace between them."""

    def __init__(self, problem: BatchNormProblem, planner: Planner) -> None:
        self.problem, self.planner = problem, planner
        self.launches: list[Launch] = []
        self.itemsize = 8 if problem.dtype == "float64" else 4
        self.slot_bytes = round_up(problem.channels * self.itemsize, 64)
        self.slots: dict[str, int] = {}
        self.scratch = 8 * self.slot_bytes  # after the per-channel values; every loop may use it
        self.workspace = 0

    def binding(self, name: str) -> tuple[Any, str]:
        """Return an argument's buffer, or the workspace of a per-channel value: names with a leading underscore."""
        if not name.startswith("_"):
            return Buffer(name), "stored" if self.problem.type_of(name) == self.problem.dtype else "real"
        slot = self.slots.setdefault(name, len(self.slots))
        return Workspace(slot * self.slot_bytes, self.itemsize), "real"

    def loop(
        self,
        shape: tuple[int, int, int],
        inputs: str,
        text: str,
        outputs: str,
        folded: tuple[int, ...] = (),
        constants: Mapping[str, float] | None = None,
        scalars: tuple[str, ...] | None = None,
        whole: bool = False,
    ) -> None:
        """Add a loop.

        Parameters
        ----------
        shape : tuple of int
            Of the loop: a leading part of (batch, channels, pixels) on every axis.
        inputs, outputs : str
            Names; x, dy, y and dx have the shape of x, all others one value per channel.
        text : str
            Assignments over these names.
        whole : bool
            Outputs are arguments that are both read and written: they have no write mode.
        """
        _, channels, pixels = self.problem.shape
        names, results = inputs.split(), outputs.split()
        loads = "".join(f"real {name} = x{i}; " for i, name in enumerate(names))
        stores = "".join(f" y{i} = {name};" for i, name in enumerate(results))
        constants = constants or {}
        scalars = self.problem.scalars() if scalars is None else scalars
        full = (channels * pixels, pixels, 1)
        operands, bound = {}, {}
        for i, name in enumerate(names):
            binding, kind = self.binding(name)
            operands[i] = Operand(binding, full if name in IMAGES else (0, 1, 0), kind)
        for i, name in enumerate(results):
            binding, kind = self.binding(name.replace("new", "running"))
            own = "" if whole or name.startswith("_") else name
            bound[i] = Result(binding, own, SUM if folded else None, kind)
        assignments = read_assignments(loads + text + stores, len(names), (*scalars, *constants))
        loop = Loop(shape, assignments, operands, bound, folded, scalars, constants, dtype=self.problem.dtype)
        part = generate(self.planner, loop, self.scratch)
        self.launches += part.items
        self.workspace = max(self.workspace, self.scratch, part.workspace_bytes)

    @property
    def per_channel(self) -> tuple[int, int, int]:
        return (1, self.problem.channels, 1)

    def activated(self, norm: str) -> str:
        """Return the text of y, of the norm's value."""
        return activated_text(self.problem.activation, norm)

    def flow(self, norm: str) -> tuple[str, str]:
        """Return the text that leads to the gradient of the norm's value, and that gradient's name."""
        return flow_text(self.problem.activation, norm)

    def forward_training(self) -> None:
        batch, channels, pixels = shape = self.problem.shape
        images, part = sample_size(self.problem)
        sampled = {"sampled": 1.0 / max(1, images * part)}
        share = {"share": 1.0 / max(1, batch * pixels)}
        both = (0, 2)
        self.loop((images, channels, part), "x", "real _shift = x * sampled;", "_shift", both, sampled, ())
        text = "real _first = x - _shift; real _second = _first * _first;"
        self.loop(shape, "x _shift", text, "_first _second", both, scalars=())
        text = """
            real d = _first * share; real v = _second * share - d * d; real var = v < 0 ? 0 : v; real mean = _shift + d;
            real _scale = gamma / sqrt(var + eps); real _offset = beta - d * _scale;"""
        outputs = "_scale _offset mean var"
        if self.problem.activation and not self.problem.residual:
            text += " real shift = _shift; real scale = _scale; real offset = _offset;"
            outputs += f" {KEPT}"
        self.loop(self.per_channel, "_first _second _shift gamma beta", text, outputs, (), share, ("eps",))
        norm, inputs = "(x - _shift) * _scale + _offset", "x _shift _scale _offset"
        if self.problem.residual:
            norm, inputs = f"{norm} + residual", f"{inputs} residual"
        self.loop(shape, inputs, self.activated(norm), "y", scalars=self.problem.activation_scalars)

    def forward_inference(self) -> None:
        text = self.activated("(x - mean) * (gamma / sqrt(var + eps)) + beta")
        self.loop(self.problem.shape, "x gamma beta mean var", text, "y")

    def backward_training(self) -> None:
        batch, _, pixels = shape = self.problem.shape
        share = {"share": 1.0 / max(1, batch * pixels)}
        scalars, kept = self.problem.activation_scalars, f" {KEPT}" if self.problem.activation else ""
        flow, dy = self.flow("(x - shift) * scale + offset")
        text = f"{flow}real _first = {dy}; real _second = {dy} * (x - mean);"
        self.loop(shape, f"x dy mean{kept}", text, "_first _second", (0, 2), scalars=scalars)
        text = """
            real inverse = 1 / sqrt(var + eps); real dgamma = _second * inverse; real dbeta = _first;
            real _scale = gamma * inverse; real _level = _first * share; real _slope = inverse * dgamma * share;"""
        outputs = "_scale _level _slope dgamma dbeta"
        if self.problem.bias:
            text += " real dbias = dbeta * 0 + dgamma * 0;"
            outputs += " dbias"
        self.loop(self.per_channel, "_first _second gamma var", text, outputs, (), share, ("eps",))
        text = f"{flow}real dx = ({dy} - _level - (x - mean) * _slope) * _scale;"
        self.loop(shape, f"x dy mean _scale _level _slope{kept}", text, "dx", scalars=scalars)

    def backward_inference(self) -> None:
        shape = self.problem.shape
        flow, dy = self.flow("(x - mean) * (gamma / sqrt(var + eps)) + beta")
        text = f"{flow}real dbeta = {dy}; real dgamma = {dy} * (x - mean) * (1 / sqrt(var + eps));"
        inputs = "x dy gamma beta mean var" if flow else "x dy mean var"
        self.loop(shape, inputs, text, "dgamma dbeta", (0, 2))
        inputs = inputs if flow else "dy gamma var"
        self.loop(shape, inputs, f"{flow}real dx = {dy} * (gamma / sqrt(var + eps));", "dx")

    def update_statistics(self) -> None:
        text = " ".join(f"real new_{name} = {value};" for name, value in zip(("mean", "var"), MOVED))
        inputs = "mean var running_mean running_var"
        self.loop(self.per_channel, inputs, text, "new_mean new_var", whole=True)
