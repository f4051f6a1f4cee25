"""The batch norm problem: statistics per channel, and what is done with them, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from clgraft.core.operators.batchnorm.following import ACTIVATIONS
from clgraft.core.operators.batchnorm.reference import normalize
from clgraft.core.problem import SMALL, Argument, Gradient, Problem, in_float64, sample_argument
from clgraft.core.problem.text import DTYPE, Choice, Entry, Flag, Number, direction_word

DIRECTIONS = ("forward_training", "forward_inference", "backward_training", "backward_inference", "update_statistics")
# what update_statistics makes of both averages, of its arguments and scalars
MOVED = ("keep * running_mean + add_mean * mean", "keep * running_var + add_var * var")
FOLLOWING = tuple(ACTIVATIONS)
IMAGES = ("x", "y", "dx", "dy", "residual")  # arguments of x's shape
KEPT = "shift scale offset"  # per channel, from forward_training to backward_training


@dataclass(frozen=True)
class BatchNormProblem(Problem):
    """Batch norm (Ioffe and Szegedy 2015) of (batch, channels, pixels).

    Parameters
    ----------
    direction : str
        ``forward_training``: x gamma beta -> y mean var, with the batch's statistics;
        ``forward_inference``: x gamma beta mean var -> y;
        ``backward_training``: x dy gamma mean var -> dx dgamma dbeta, through the batch's statistics;
        ``backward_inference``: the same arguments, the statistics being constants;
        ``update_statistics``: mean var -> running_mean running_var.
    batch, channels, pixels : int
        Sizes; `pixels` is the product of the spatial sizes.
    dtype : str
        ``float32``, ``float16`` or ``bfloat16`` (storage), or ``float64``.
    activation : str
        One of `FOLLOWING`: y is its value of the norm, with its scalars after eps; empty: none.
    float32_parameters : bool
        With 16 bits: whether all that has a value for each channel (parameters, statistics and their gradients) is
        float32, as in mixed precision.
    residual : bool
        Of forward_training: whether an input ``residual`` of x's shape, after beta, is added to the norm's value,
        before the activation.
    bias : bool
        Of backward_training: whether there is an output ``dbias`` after dbeta, the gradient of a bias that was added to
        x: the sum of dx over each channel.

    Notes
    -----
    `var` is the biased variance. Scalar ``eps`` is added to it; update_statistics has the scalars ``keep``,
    ``add_mean`` and ``add_var``: running_mean = keep * running_mean + add_mean * mean, and the same for var.
    With an activation, forward_training has three more outputs per channel, shift, scale and offset, which
    backward_training reads after var: the norm is (x - shift) * scale + offset, so both see the same kinks.
    They are float32 where x has 16 bits. backward_inference then reads beta, after gamma. With a residual there are no
    such outputs, and no gradient problem: graphs add residuals to norms once gradients are derived.
    The norm takes away what a bias adds, so dbias is 0 in exact arithmetic, and here where both other sums of the
    channel are finite; else it is not a number.
    Without any element (batch or pixels 0) the batch's mean and variance are 0.

    Raises
    ------
    ProblemError
        If a size is out of range.
    """

    kind: ClassVar[str] = "batchnorm"
    TEXT: ClassVar[tuple[Entry, ...]] = (
        direction_word(DIRECTIONS, None),
        DTYPE,
        Number("n", "batch"),
        Number("c", "channels"),
        Number("s", "pixels"),
        Choice("activation", FOLLOWING, ""),
        Flag("f32_parameters", "float32_parameters"),
        Flag("residual", "residual"),
        Flag("bias", "bias"),
    )
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    per_image: ClassVar[tuple[str, ...]] = ("forward_inference",)
    sizes: ClassVar[tuple[str, ...]] = ("n", "c", "s")
    examples: ClassVar[tuple[str, ...]] = ("n4 c5 s49",)
    usual_scalars: ClassVar[Mapping[str, float]] = {
        "eps": 1e-5,
        "keep": 0.9,
        "add_mean": 0.1,
        "add_var": 0.2,
        "slope": 0.25,
        "low": 0.0,
        "high": 6.0,
    }

    direction: str
    batch: int
    channels: int
    pixels: int
    dtype: str = "float32"
    activation: str = ""
    float32_parameters: bool = False
    residual: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        self._take_counts(batch=0, channels=1, pixels=0)
        following = FOLLOWING if self.direction != "update_statistics" else ()
        self._expect_words(direction=DIRECTIONS, activation=("", *following))
        good = self.dtype in SMALL or not self.float32_parameters
        self._expect(good, "f32_parameters", f"with {self.dtype}", f"one of {SMALL} with it")
        good = self.direction == "forward_training" or not self.residual
        self._expect(good, "residual", f"with {self.direction}", "forward_training with it")
        good = self.direction == "backward_training" or not self.bias
        self._expect(good, "bias", f"with {self.direction}", "backward_training with it")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of x."""
        return (self.batch, self.channels, self.pixels)

    def arguments(self) -> tuple[Argument, ...]:
        table = {
            "forward_training": ("x gamma beta", "y mean var", "out"),
            "forward_inference": ("x gamma beta mean var", "y", "out"),
            "backward_training": ("x dy gamma mean var", "dx dgamma dbeta", "out"),
            "backward_inference": ("x dy gamma mean var", "dx dgamma dbeta", "out"),
            "update_statistics": ("mean var", "running_mean running_var", "inout"),
        }
        inputs, outputs, role = table[self.direction]
        outputs += " dbias" if self.bias else ""
        if self.residual:
            inputs += " residual"
        elif self.activation:
            inputs += {"backward_training": " " + KEPT}.get(self.direction, "")
            outputs += {"forward_training": " " + KEPT}.get(self.direction, "")
            inputs = inputs.replace("gamma", "gamma beta") if self.direction == "backward_inference" else inputs

        def shape(name: str) -> tuple[int, ...]:
            return self.shape if name in IMAGES else (self.channels,)

        return tuple(
            Argument(name, part, shape(name), self.type_of(name))
            for part, names in (("in", inputs), (role, outputs))
            for name in names.split()
        )

    def type_of(self, name: str) -> str:
        """Return the dtype of an argument."""
        wide = name in KEPT.split() or (self.float32_parameters and name not in IMAGES)
        return "float32" if wide and self.dtype in SMALL else self.dtype

    def replaced(self, output: str) -> tuple[str, ...]:
        """Return x and the residual for y, and dy for dx: sums of a channel come before its results."""
        return {"y": ("x", "residual") if self.residual else ("x",), "dx": ("dy",)}.get(output, ())

    def gradients(self) -> tuple[Gradient, ...]:
        """Return the gradient problem; mean and var have no gradients as outputs, nor as inputs of inference."""
        if self.direction == "update_statistics":
            return ()
        if not self.direction.startswith("forward") or self.residual:
            return super().gradients()
        return (Gradient.of(self.with_direction(self.direction.replace("forward", "backward"))),)

    @property
    def operations(self) -> int:
        """Four for each element, eight backward."""
        if self.direction == "update_statistics":
            return 6 * self.channels
        return math.prod(self.shape) * (4 if self.direction.startswith("forward") else 8)

    @property
    def terms(self) -> int:
        """The elements of a channel, where the direction sums over them."""
        return 1 if self.direction in ("forward_inference", "update_statistics") else max(1, self.batch * self.pixels)

    def sample(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs; backward, the statistics belong to x."""
        given = {a.name: sample_argument(a, rng) for a in self.arguments() if a.role != "out"}
        if self.direction != "backward_training":
            return given
        before = replace(self, direction="forward_training", bias=False)
        results = before.reference({"beta": np.full(self.channels, 0.25), **given}, before.trial_scalars())
        kept = {a.name: results[a.name].astype(a.dtype) for a in self.arguments() if a.name in results}
        return {name: kept.get(name, value) for name, value in given.items()}

    def determined(self, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return one offset in place of shift and offset: any shift serves."""
        found = dict(results)
        if "shift" in found:
            shift, scale, offset = (np.asarray(found[name], np.float64) for name in ("shift", "scale", "offset"))
            del found["shift"]
            found["offset"] = offset - shift * scale
        return found

    def reference(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
    ) -> dict[str, np.ndarray]:
        wide = in_float64(arrays)
        return normalize(self, wide, scalars or self.trial_scalars())

    @property
    def activation_scalars(self) -> tuple[str, ...]:
        """Names of the activation's scalars."""
        return ACTIVATIONS[self.activation].scalars if self.activation else ()

    def scalars(self) -> tuple[str, ...]:
        if self.direction == "update_statistics":
            return ("keep", "add_mean", "add_var")
        return ("eps", *self.activation_scalars)
