"""Batch norm, layer norm and group norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from clgraft.core.nn import norms
from clgraft.core.nn.shapes import matrix_shape
from clgraft.core.problem import SMALL
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand, widest

aten = torch.ops.aten


def _affine(
    build: Builder, x: Operand, given: Operand | None, value: float, shape: Sequence[int] = (), dtype: str = ""
) -> Any:
    """Return gamma or beta, or what stands for it, in a shape that broadcasts to x; by default of its type."""
    shape, dtype = shape or (x.shape[1],), dtype or x.dtype
    found = given or build.filled((math.prod(shape),), value, dtype)
    return build.given(found, dtype, shape)


def _with_parameters(build: Builder, x: Operand, *parameters: Operand | None) -> tuple[Operand, str]:
    """Return what a batch norm takes, and the type of its parameters: float32 may go with 16 bits."""
    dtype = widest(x, *parameters)
    return (x if x.dtype in SMALL and dtype == "float32" else build.cast(x, dtype)), dtype


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    build: Builder,
    x: Operand,
    gamma: Operand | None,
    beta: Operand | None,
    mean: Operand,
    var: Operand,
    momentum: float,
    eps: float,
) -> tuple[Operand, Operand, Operand]:
    """Return a batch norm by given statistics, and two empty vectors."""
    x, dtype = _with_parameters(build, x, gamma, beta, mean, var)
    affine = (_affine(build, x, one, value, dtype=dtype) for one, value in ((gamma, 1.0), (beta, 0.0)))
    statistics = build.given(mean, dtype), build.given(var, dtype)
    y = build.taken(norms.batch_norm(build.nn, build.given(x), *affine, statistics, eps=eps).y)
    nothing = build.filled((0,), 0.0, x.dtype)
    return y, nothing, nothing


@lowers(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
def batch_norm_training(
    build: Builder, x: Operand, gamma: Operand | None, beta: Operand | None, *rest: Any
) -> tuple[Operand, ...]:
    """Return y, the batch's mean, 1 / sqrt(variance + eps), and where there are running statistics, these."""
    *running, training, momentum, eps = rest
    if not training:
        y, *_ = batch_norm_inference(build, x, gamma, beta, *running, momentum, eps)
        nothing = build.filled((0,), 0.0, x.dtype)
        return (y, nothing, nothing, *running)
    x, dtype = _with_parameters(build, x, gamma, beta, *running)
    affine = (_affine(build, x, one, value, dtype=dtype) for one, value in ((gamma, 1.0), (beta, 0.0)))
    found = norms.batch_norm(build.nn, build.given(x), *affine, eps=eps)
    moving = [build.given(one, dtype) for one in running]
    shares = norms.shares(add=momentum, count=norms.values_of_channel(x.shape))
    vectors = norms.inverse_and_moved_averages(build.nn, found, moving, eps=eps, **shares)
    return tuple(build.taken(one) for one in (found.y, found.mean, *vectors))


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    build: Builder,
    dy: Operand,
    x: Operand,
    gamma: Operand | None,
    running_mean: Operand | None,
    running_var: Operand | None,
    mean: Operand | None,
    inverse: Operand | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a batch norm: of x, gamma and beta."""
    x, dtype = _with_parameters(build, x, gamma, running_mean, running_var, mean, inverse)
    first, second = (mean, inverse) if training else (running_mean, running_var)
    if first is None or second is None:
        kind = " the batch's" if training else ""
        raise NotLowered(f"[torch] got a batch norm's gradient without{kind} statistics, expected both")
    of_x, variance = build.given(first, dtype), build.given(second, dtype)
    if training:
        variance = norms.variance_of(build.nn, variance, eps=eps)
    found = norms.batch_norm_gradients(
        build.nn,
        build.given(x),
        build.given(dy, x.dtype),
        _affine(build, x, gamma, 1.0, dtype=dtype),
        (of_x, variance),
        wanted,
        eps=eps,
        through=training,
    )
    return tuple(build.taken(one) for one in found)


def _rows(x: Operand, normalized: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return how a layer norm sees x, the axes of its moments, and the shape of gamma."""
    outer, inner = matrix_shape(x.shape, len(x.shape) - len(normalized))
    if not outer * inner:
        raise NotLowered(f"[torch] got shape {x.shape} of a layer norm, expected elements")
    return (outer, inner), (1,), (1, inner)


def _groups(
    x: Operand, batch: int, channels: int, pixels: int, groups: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the same of a group norm."""
    if not x.size:
        raise NotLowered(f"[torch] got shape {x.shape} of a group norm, expected elements")
    view = norms.in_groups((batch, channels, pixels), groups)
    return view, norms.GROUP_AXES, (1, *view[1:3], 1)


def _by_moments(
    build: Builder,
    x: Operand,
    gamma: Operand | None,
    beta: Operand | None,
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    eps: float,
    kept: Sequence[int],
) -> tuple[Operand, ...]:
    """Return a norm by moments, the mean and 1 / deviation."""
    shape, axes, along = layout
    affine = _affine(build, x, gamma, 1.0, along), _affine(build, x, beta, 0.0, along)
    y, found = norms.by_moments(build.nn, build.given(x, "", shape), *affine, axes, eps=eps)
    statistics = norms.mean(build.nn, found), norms.inverse_deviation(build.nn, found, eps=eps)
    mean, inverse = (build.nn.cast(one, y.dtype) for one in statistics)
    return build.taken(y, x.shape), build.taken(mean, kept), build.taken(inverse, kept)


def _gradients(
    build: Builder,
    dy: Operand,
    x: Operand,
    inverse: Operand,
    gamma: Operand | None,
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    wanted: Sequence[bool],
    seen: Sequence[int],
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a norm by moments, which are computed again; the deviation is the given one."""
    shape, axes, along = layout
    given = build.given(x, "", shape)
    found = norms.moments_with_deviation(build.nn, given, axes, build.given(inverse, x.dtype))
    results = norms.by_moments_gradients(
        build.nn,
        given,
        build.given(dy, x.dtype, shape),
        _affine(build, x, gamma, 1.0, along),
        found,
        wanted,
        eps=0.0,
    )
    return tuple(build.taken(one, view) for one, view in zip(results, (x.shape, seen, seen)))


@lowers(aten.native_layer_norm.default)
def layer_norm(
    build: Builder, x: Operand, normalized: Sequence[int], gamma: Operand | None, beta: Operand | None, eps: float
) -> tuple[Operand, ...]:
    """Return y, the mean and 1 / deviation of each row."""
    x = build.cast(x, widest(x, gamma, beta))
    kept = (*x.shape[: len(x.shape) - len(normalized)], *(1,) * len(normalized))
    return _by_moments(build, x, gamma, beta, _rows(x, normalized), eps, kept)


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
    """Return the wanted gradients of a layer norm."""
    x = build.cast(x, widest(x, gamma, inverse))
    return _gradients(build, dy, x, inverse, gamma, _rows(x, normalized), wanted, normalized)


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
    return _by_moments(build, x, gamma, beta, _groups(x, batch, channels, pixels, groups), eps, (batch, groups))


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
    """Return the wanted gradients of a group norm."""
    x = build.cast(x, widest(x, gamma, inverse))
    return _gradients(build, dy, x, inverse, gamma, _groups(x, batch, channels, pixels, groups), wanted, (channels,))
