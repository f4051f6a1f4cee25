"""Layer norm and group norm, as the core's norms by moments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from clgraft.core.operators.pointwise.formulas.norms import MomentNorm
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand, widest

aten = torch.ops.aten
MOMENTS = ("x", "shift", "difference", "square")


class _Norm:
    """A norm of x, viewed so that gamma broadcasts, and its moments."""

    def __init__(self, build: Builder, x: Operand, norm: MomentNorm, eps: float | None) -> None:
        self.build, self.norm, self.eps = build, norm, eps
        count = math.prod(norm.shape[axis] for axis in norm.folded)
        self.share = 1.0 / count if count else 0.0
        self.values = {"x": build.reshaped(x, norm.shape)}
        (self.values["shift"],) = self._run(norm.shift(), "x", share=True)
        self.values["difference"], self.values["square"] = self._run(norm.moments(), "x shift", share=True)

    def _run(self, problem: object, names: str, share: bool = False) -> list[Operand]:
        wanted = problem.scalars()  # type: ignore[attr-defined]
        scalars = {name: self.share if name == "share" else self.eps for name in wanted}
        reads = {f"x{i}": self.values[name] for i, name in enumerate(names.split())}
        return list(self.build.run(problem, reads, scalars).values())  # type: ignore[arg-type]

    def forward(self, gamma: Operand, beta: Operand) -> tuple[Operand, Operand, Operand]:
        """Return y, the mean and 1 / deviation."""
        self.values.update(gamma=self.build.reshaped(gamma, self.norm.gamma))
        self.values.update(beta=self.build.reshaped(beta, self.norm.gamma))
        (y,) = self._run(self.norm.forward(), "x shift difference square gamma beta")
        shift, difference, square = (self.values[name] for name in MOMENTS[1:])
        (mean,) = self.build.pointwise("y0 = x0 + x1;", [shift, difference])
        text = "real variance = x1 - x0 * x0; y0 = 1 / sqrt((variance > 0 ? variance : 0) + eps);"
        (inverse,) = self.build.pointwise(text, [difference, square], {"eps": self.eps or 0.0})
        return y, mean, inverse

    def backward(self, dy: Operand, gamma: Operand, wanted: Sequence[bool]) -> list[Operand | None]:
        """Return the wanted gradients of x, gamma and beta."""
        self.values.update(dy=self.build.reshaped(dy, self.norm.shape))
        self.values.update(gamma=self.build.reshaped(gamma, self.norm.gamma))
        results: list[Operand | None] = [None, None, None]
        if wanted[0]:
            names = "x shift difference square gamma dy"
            self.values["first"], self.values["second"] = self._run(self.norm.sums(), names)
            (results[0],) = self._run(self.norm.backward(), names + " first second")
        if wanted[1] or wanted[2]:
            found = self._run(self.norm.parameters(), "x shift difference square dy")
            results[1:] = [value if asked else None for value, asked in zip(found, wanted[1:])]
        return results


def _layer(x: Operand, normalized: Sequence[int]) -> MomentNorm:
    outer = math.prod(x.shape[: len(x.shape) - len(normalized)])
    inner = math.prod(normalized)
    if not outer * inner:
        raise NotLowered(f"[torch] got shape {x.shape} of a layer norm, expected elements")
    return MomentNorm((outer, inner), (1,), (1, inner), x.dtype)


def _filled(build: Builder, x: Operand, given: Operand | None, shape: Sequence[int], value: float) -> Operand:
    return given or build.filled(tuple(shape), value, x.dtype)


@lowers(aten.native_layer_norm.default)
def layer_norm(
    build: Builder, x: Operand, normalized: Sequence[int], gamma: Operand | None, beta: Operand | None, eps: float
) -> tuple[Operand, ...]:
    """Return y, the mean and 1 / deviation of each row."""
    x = build.cast(x, widest(x, gamma, beta))
    norm = _Norm(build, x, _layer(x, normalized), eps)
    first = _filled(build, x, gamma, normalized, 1.0)
    y, mean, inverse = norm.forward(first, _filled(build, x, beta, normalized, 0.0))
    kept = (*x.shape[: len(x.shape) - len(normalized)], *(1,) * len(normalized))
    return build.reshaped(y, x.shape), build.reshaped(mean, kept), build.reshaped(inverse, kept)


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    build: Builder,
    dy: Operand,
    x: Operand,
    normalized: Sequence[int],
    mean: Operand,
    inverse: Operand,
    gamma: Operand | None,
    beta: Operand | None,
    wanted: Sequence[bool],
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a layer norm; its moments are computed again, the deviation is the given one."""
    x = build.cast(x, widest(x, gamma, inverse))
    plan = _layer(x, normalized)
    return _gradients(build, dy, x, plan, inverse, gamma, normalized, wanted, normalized)


def _gradients(
    build: Builder,
    dy: Operand,
    x: Operand,
    plan: MomentNorm,
    inverse: Operand,
    gamma: Operand | None,
    gamma_shape: Sequence[int],
    wanted: Sequence[bool],
    seen: Sequence[int],
) -> tuple[Operand | None, ...]:
    norm = _Norm(build, x, plan, 0.0)
    # The gradients' formulas take a variance and eps. With eps = 0 the square is chosen so that its variance is that of
    # the given deviation, which includes eps.
    text = "y0 = x0 * x0 + 1 / (x1 * x1);"
    kept = build.reshaped(inverse, plan.kept)
    (norm.values["square"],) = build.pointwise(text, [norm.values["difference"], kept])
    found = norm.backward(dy, _filled(build, x, gamma, gamma_shape, 1.0), wanted)
    shapes = (x.shape, seen, seen)
    return tuple(None if value is None else build.reshaped(value, s) for value, s in zip(found, shapes))


def _group(x: Operand, batch: int, channels: int, pixels: int, groups: int) -> MomentNorm:
    if not x.size:
        raise NotLowered(f"[torch] got shape {x.shape} of a group norm, expected elements")
    each = channels // groups
    return MomentNorm((batch, groups, each, pixels), (2, 3), (1, groups, each, 1), x.dtype)


@lowers(aten.native_group_norm.default)
def group_norm(
    build: Builder,
    x: Operand,
    gamma: Operand | None,
    beta: Operand | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Operand, ...]:
    """Return y, the mean and 1 / deviation of each group."""
    x = build.cast(x, widest(x, gamma, beta))
    norm = _Norm(build, x, _group(x, batch, channels, pixels, groups), eps)
    first = _filled(build, x, gamma, (channels,), 1.0)
    y, mean, inverse = norm.forward(first, _filled(build, x, beta, (channels,), 0.0))
    kept = (batch, groups)
    return build.reshaped(y, x.shape), build.reshaped(mean, kept), build.reshaped(inverse, kept)


@lowers(aten.native_group_norm_backward.default)
def group_norm_backward(
    build: Builder,
    dy: Operand,
    x: Operand,
    mean: Operand,
    inverse: Operand,
    gamma: Operand | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a group norm; its moments are computed again, the deviation is the given one."""
    x = build.cast(x, widest(x, gamma, inverse))
    plan = _group(x, batch, channels, pixels, groups)
    return _gradients(build, dy, x, plan, inverse, gamma, (channels,), wanted, (channels,))
