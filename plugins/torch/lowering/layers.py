"""Convolution, pooling and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from clgraft.core import ConvProblem, DeconvProblem, PoolProblem
from clgraft.core.nn import pooling as nn
from clgraft.core.nn import softmax as nn_softmax
from clgraft.core.nn.builder import Tensor
from clgraft.plugins.torch import operators
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.resizing import adaptive_averages, adaptive_averages_backward
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered, Operand, axis_of

aten = torch.ops.aten


def _spatial(values: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return one number per spatial axis; PyTorch repeats a single one."""
    return tuple(values) * ndim if len(values) == 1 else tuple(values)


def _convolution(
    direction: str, x: Sequence[int], w: Sequence[int], bias: bool, dtype: str, attributes: Sequence[Any]
) -> ConvProblem | DeconvProblem:
    stride, pad, dilate, transposed, adj, groups = attributes
    ndim = len(x) - 2
    if not 1 <= ndim <= 3:
        raise NotLowered(f"[torch] got a convolution of {len(x)} axes, expected 3 to 5")
    sizes = {
        "direction": direction,
        "batch": x[0],
        "in_channels": x[1],
        "out_channels": w[1] * groups if transposed else w[0],
        "in_size": tuple(x[2:]),
        "kernel": tuple(w[2:]),
        "stride": _spatial(stride, ndim),
        "pad_begin": _spatial(pad, ndim),
        "dilate": _spatial(dilate, ndim),
        "groups": groups,
        "bias": bias,
        "dtype": dtype,
    }
    return DeconvProblem(**sizes, adj=_spatial(adj, ndim)) if transposed else ConvProblem(**sizes)


@lowers(aten.convolution.default)
def convolution(build: Builder, x: Operand, w: Operand, bias: Operand | None, *attributes: Any) -> Operand:
    """Return a convolution, or with `transposed` a deconvolution."""
    problem = _convolution("forward", x.shape, w.shape, bias is not None, x.dtype, attributes)
    reads = {"x": x, "w": w, **({} if bias is None else {"b": bias})}
    return build.run(problem, reads)["y"]


@lowers(aten.convolution_backward.default)
def convolution_backward(
    build: Builder, dy: Operand, x: Operand, w: Operand, bias_sizes: Any, *rest: Any
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a convolution: of x, of the weights, of the bias."""
    *attributes, wanted = rest
    reads = {"x": x, "w": w, "dy": dy}
    results: list[Operand | None] = []
    for direction, asked in zip(("backward_data", "backward_filter", "backward_bias"), wanted):
        if not asked:
            results.append(None)
            continue
        problem = _convolution(direction, x.shape, w.shape, False, x.dtype, attributes)
        (found,) = build.run(problem, {a.name: reads[a.name] for a in problem.arguments() if a.role == "in"}).values()
        results.append(found)
    return tuple(results)


def _batched(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of images with an axis for the batch, which a single one lacks."""
    return tuple(shape) if len(shape) == 4 else (1, *shape)


def _pooled(build: Builder, problem: PoolProblem, ndim: int, *reads: Operand) -> Operand:
    """Return the result of a pooling, or its gradient, with a number of axes."""
    (y,) = build.nn.add(problem, *(build.given(one, problem.dtype) for one in reads))
    found: Operand = build.taken(y, y.shape[4 - ndim :])
    return found


def _pooling(direction: str, operator: str, shape: Sequence[int], dtype: str, *attributes: Any) -> PoolProblem:
    kernel, stride, pad, ceil, count = attributes
    kernel, pad = _spatial(kernel, 2), _spatial(pad, 2)
    stride = _spatial(stride, 2) if stride else kernel
    if ceil and any(s > k for s, k in zip(stride, kernel)):
        raise NotLowered("[torch] got ceil_mode with a stride above the kernel's size, expected none")
    x, rounding = Tensor("x", _batched(shape), dtype), "ceil_inside" if ceil else "floor"
    problem = nn.pool_problem(x, operator, kernel, stride, pad, (), rounding, count)
    return problem.with_direction(direction)


def _max_pooling(direction: str, x: Sequence[int], dtype: str, attributes: Sequence[Any]) -> PoolProblem:
    defaults: tuple[Any, ...] = ((), (0,), (1,), False)
    kernel, stride, pad, dilate, ceil = (*attributes, *defaults[len(attributes) - 1 :])
    if set(dilate) != {1}:
        raise NotLowered(f"[torch] got dilation {list(dilate)} of a pooling, expected 1")
    return _pooling(direction, "max", x, dtype, _spatial(kernel, 2), stride, pad, ceil, True)


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(build: Builder, x: Operand, *attributes: Any) -> tuple[Operand, None]:
    """Return the maxima of windows; their indices are never asked for (see `joint`)."""
    return _pooled(build, _max_pooling("forward", x.shape, x.dtype, attributes), len(x.shape), x), None


@lowers(operators.max_pool_backward)
def max_pool_backward(build: Builder, dy: Operand, x: Operand, y: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `max_pool`, which goes to the first maximum of each window."""
    return _pooled(build, _max_pooling("backward", x.shape, x.dtype, attributes), len(x.shape), x, y, dy)


def _average(
    direction: str, x: Sequence[int], dtype: str, attributes: Sequence[Any]
) -> tuple[PoolProblem, float | None]:
    """Return the averages of windows, or their sums and the number that these are divided by."""
    defaults: tuple[Any, ...] = ((), (0,), False, True, None)
    kernel, stride, pad, ceil, count, divisor = (*attributes, *defaults[len(attributes) - 1 :])
    operator = "average" if divisor is None else "sum"
    return _pooling(direction, operator, x, dtype, _spatial(kernel, 2), stride, pad, ceil, count), divisor


def _divided(build: Builder, x: Operand, divisor: float | None) -> Operand:
    return x if divisor is None else build.taken(nn.divided(build.nn, build.given(x), divisor))


@lowers(aten.avg_pool2d.default)
def average_pool(build: Builder, x: Operand, *attributes: Any) -> Operand:
    """Return the averages of windows."""
    problem, divisor = _average("forward", x.shape, x.dtype, attributes)
    return _divided(build, _pooled(build, problem, len(x.shape), x), divisor)


@lowers(aten.avg_pool2d_backward.default)
def average_pool_backward(build: Builder, dy: Operand, x: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `average_pool`."""
    problem, divisor = _average("backward", x.shape, x.dtype, attributes)
    return _pooled(build, problem, len(x.shape), _divided(build, dy, divisor))


def _multiples(pixels: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether adaptive averages are those of equal windows side by side."""
    return not any(p % s for p, s in zip(pixels, size))


def _windows(direction: str, shape: Sequence[int], size: Sequence[int], dtype: str) -> PoolProblem:
    kernel = tuple(p // s for p, s in zip(shape[-2:], size))
    return _pooling(direction, "average", shape, dtype, kernel, kernel, (0, 0), False, True)


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_average_pool(build: Builder, x: Operand, size: Sequence[int]) -> Operand:
    """Return averages at a given number of places."""
    if _multiples(x.shape[-2:], size):
        return _pooled(build, _windows("forward", x.shape, size, x.dtype), len(x.shape), x)
    return adaptive_averages(build, x, size)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of `adaptive_average_pool`."""
    size = dy.shape[-2:]
    if _multiples(x.shape[-2:], size):
        return _pooled(build, _windows("backward", x.shape, size, x.dtype), len(x.shape), dy)
    return adaptive_averages_backward(build, dy, x.shape[-2:])


def _images(build: Builder, x: Operand, ndim: int) -> Tensor:
    """Return images with an axis for the batch, which a single one lacks."""
    return build.given(x, "", (1,) * (ndim + 2 - len(x.shape)) + x.shape)


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(build: Builder, x: Operand, size: Sequence[int]) -> tuple[Operand, None]:
    """Return maxima at a given number of places; their indices are never asked for (see `joint`)."""
    (y,) = nn.adaptive_max_pool(build.nn, _images(build, x, len(size)), size)
    return build.taken(y, (*x.shape[: -len(size)], *size)), None


@lowers(operators.adaptive_max_pool_backward)
def adaptive_max_pool_backward(build: Builder, dy: Operand, x: Operand, y: Operand, size: Sequence[int]) -> Operand:
    """Return the gradient of `adaptive_max_pool`, which goes to the first maximum of each window."""
    given = (_images(build, one, len(size)) for one in (dy, x, y))
    return build.taken(nn.adaptive_max_pool_gradient(build.nn, *given), x.shape)  # type: ignore[no-any-return]


def _sizes(x: Operand, axis: int) -> tuple[int, int, int]:
    """Return the elements before, of and after an axis."""
    return nn_softmax.around(x.shape or (1,), axis_of(axis, len(x.shape)))


def _normalized(build: Builder, x: Operand, axis: int, log: bool) -> Operand:
    """Return the softmax along an axis, or its logarithm."""
    found: Operand = build.taken(nn_softmax.softmax(build.nn, build.given(x), _sizes(x, axis), log=log))
    return found


@lowers(aten._softmax.default)
def softmax(build: Builder, x: Operand, axis: int, to_float: bool) -> Operand:
    """Return the softmax along an axis."""
    return _normalized(build, build.cast(x, "float32") if to_float else x, axis, False)


@lowers(aten._safe_softmax.default)
def safe_softmax(build: Builder, x: Operand, axis: int, dtype: Any = None) -> Operand:
    """Return the softmax along an axis; where all values are minus infinity, 0."""
    if not x.size:
        raise NotLowered(f"[torch] got shape {x.shape} of a softmax, expected elements")
    x = x if dtype is None else build.cast(x, DTYPES[dtype])
    given = build.given(x, "", x.shape or (1,))
    found = nn_softmax.safe_softmax(build.nn, given, axis_of(axis, len(x.shape)))
    return build.taken(found, x.shape)  # type: ignore[no-any-return]


@lowers(aten._log_softmax.default)
def log_softmax(build: Builder, x: Operand, axis: int, to_float: bool) -> Operand:
    """Return the logarithm of the softmax along an axis."""
    return _normalized(build, build.cast(x, "float32") if to_float else x, axis, True)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(build: Builder, dy: Operand, y: Operand, axis: int, dtype: Any) -> Operand:
    """Return the gradient of `softmax`."""
    return _softmax_gradient(build, dy, y, axis, False)


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(build: Builder, dy: Operand, y: Operand, axis: int, dtype: Any) -> Operand:
    """Return the gradient of `log_softmax`."""
    return _softmax_gradient(build, dy, y, axis, True)


def _softmax_gradient(build: Builder, dy: Operand, y: Operand, axis: int, log: bool) -> Operand:
    given = build.given(y, dy.dtype), build.given(dy)
    found: Operand = build.taken(nn_softmax.softmax_gradient(build.nn, *given, _sizes(dy, axis), log=log))
    return found
