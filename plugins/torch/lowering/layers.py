"""Convolution, batch norm, pooling and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from clgraft.core import BatchNormProblem, ConvProblem, DeconvProblem, PoolProblem, SoftmaxProblem
from clgraft.plugins.torch import operators
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.resizing import adaptive_averages, adaptive_averages_backward
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered, Operand, axis_of, widest

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


def _norm(direction: str, x: Operand) -> BatchNormProblem:
    return BatchNormProblem(direction, x.shape[0], x.shape[1], math.prod(x.shape[2:]), x.dtype)


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
    x = build.cast(x, widest(x, gamma, beta, mean, var))
    reads = {"x": x, **_affine(build, x, gamma, beta), "mean": mean, "var": var}
    y = build.run(_norm("forward_inference", x), reads, {"eps": eps}, {"y": x.shape})["y"]
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
    x = build.cast(x, widest(x, gamma, beta, *running))
    reads = {"x": x, **_affine(build, x, gamma, beta)}
    found = build.run(_norm("forward_training", x), reads, {"eps": eps}, {"y": x.shape})
    if not running:
        (inverse,) = build.pointwise("y0 = rsqrt(x0 + eps);", [found["var"]], {"eps": eps})
        return found["y"], found["mean"], inverse
    count = x.size // x.shape[1]
    correction = count / (count - 1) if count > 1 else math.nan  # of the biased variance, as in PyTorch
    text = "y0 = rsqrt(x1 + eps); y1 = keep * x2 + share * x0; y2 = keep * x3 + unbiased * x1;"
    numbers = {"eps": eps, "keep": 1 - momentum, "share": momentum, "unbiased": momentum * correction}
    vectors = build.pointwise(text, [found["mean"], found["var"], *running], numbers, outputs=3)
    return found["y"], found["mean"], *vectors


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
    x = build.cast(x, widest(x, gamma, running_mean, running_var, mean, inverse))
    if training:
        if mean is None or inverse is None:
            raise NotLowered("[torch] got a batch norm's gradient without the batch's statistics, expected both")
        (var,) = build.pointwise("y0 = 1 / (x0 * x0) - eps;", [inverse], {"eps": eps})
        statistics = {"mean": mean, "var": var}
    else:
        if running_mean is None or running_var is None:
            raise NotLowered("[torch] got a batch norm's gradient without statistics, expected both")
        statistics = {"mean": running_mean, "var": running_var}
    problem = _norm("backward_training" if training else "backward_inference", x)
    reads = {"x": x, "dy": dy, "gamma": _affine(build, x, gamma, None)["gamma"], **statistics}
    found = build.run(problem, reads, {"eps": eps}, {"dx": x.shape})
    return tuple(found[name] if asked else None for name, asked in zip(("dx", "dgamma", "dbeta"), wanted))


def _affine(build: Builder, x: Operand, gamma: Operand | None, beta: Operand | None) -> dict[str, Operand]:
    shape = (x.shape[1],)
    return {
        "gamma": gamma or build.filled(shape, 1.0, x.dtype),
        "beta": beta or build.filled(shape, 0.0, x.dtype),
    }


def _batched(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of images with an axis for the batch, which a single one lacks."""
    return tuple(shape) if len(shape) == 4 else (1, *shape)


def _pooled(build: Builder, problem: PoolProblem, ndim: int, **reads: Operand) -> Operand:
    """Return the result of a pooling, or its gradient, with a number of axes."""
    (result,) = (argument for argument in problem.arguments() if argument.role == "out")
    seen = result.shape[4 - ndim :]
    return build.run(problem, reads, shapes={result.name: seen})[result.name]


def _pooling(direction: str, operator: str, shape: Sequence[int], dtype: str, *attributes: Any) -> PoolProblem:
    kernel, stride, pad, ceil, count = attributes
    x = _batched(shape)
    kernel, pad = _spatial(kernel, 2), _spatial(pad, 2)
    stride = _spatial(stride, 2) if stride else kernel
    if ceil and any(s > k for s, k in zip(stride, kernel)):
        raise NotLowered("[torch] got ceil_mode with a stride above the kernel's size, expected none")
    rounding = "ceil_inside" if ceil else "floor"
    return PoolProblem(
        direction,
        operator,
        x[0],
        x[1],
        tuple(x[2:]),
        kernel=kernel,
        stride=stride,
        pad_begin=pad,
        rounding=rounding,
        count_padding=count,
        dtype=dtype,
    )


def _max_pooling(direction: str, x: Sequence[int], dtype: str, attributes: Sequence[Any]) -> PoolProblem:
    defaults: tuple[Any, ...] = ((), (0,), (1,), False)
    kernel, stride, pad, dilate, ceil = (*attributes, *defaults[len(attributes) - 1 :])
    if set(dilate) != {1}:
        raise NotLowered(f"[torch] got dilation {list(dilate)} of a pooling, expected 1")
    return _pooling(direction, "max", x, dtype, _spatial(kernel, 2), stride, pad, ceil, True)


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(build: Builder, x: Operand, *attributes: Any) -> tuple[Operand, None]:
    """Return the maxima of windows; their indices are never asked for (see `joint`)."""
    return _pooled(build, _max_pooling("forward", x.shape, x.dtype, attributes), len(x.shape), x=x), None


@lowers(operators.max_pool_backward)
def max_pool_backward(build: Builder, dy: Operand, x: Operand, y: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `max_pool`, which goes to the first maximum of each window."""
    return _pooled(build, _max_pooling("backward", x.shape, x.dtype, attributes), len(x.shape), x=x, y=y, dy=dy)


def _average(
    direction: str, x: Sequence[int], dtype: str, attributes: Sequence[Any]
) -> tuple[PoolProblem, float | None]:
    """Return the averages of windows, or their sums and the number that these are divided by."""
    defaults: tuple[Any, ...] = ((), (0,), False, True, None)
    kernel, stride, pad, ceil, count, divisor = (*attributes, *defaults[len(attributes) - 1 :])
    operator = "average" if divisor is None else "sum"
    return _pooling(direction, operator, x, dtype, _spatial(kernel, 2), stride, pad, ceil, count), divisor


def _divided(build: Builder, x: Operand, divisor: float | None) -> Operand:
    return x if divisor is None else build.pointwise("y0 = x0 / divisor;", [x], {"divisor": divisor})[0]


@lowers(aten.avg_pool2d.default)
def average_pool(build: Builder, x: Operand, *attributes: Any) -> Operand:
    """Return the averages of windows."""
    problem, divisor = _average("forward", x.shape, x.dtype, attributes)
    return _divided(build, _pooled(build, problem, len(x.shape), x=x), divisor)


@lowers(aten.avg_pool2d_backward.default)
def average_pool_backward(build: Builder, dy: Operand, x: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `average_pool`."""
    problem, divisor = _average("backward", x.shape, x.dtype, attributes)
    return _pooled(build, problem, len(x.shape), dy=_divided(build, dy, divisor))


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
        return _pooled(build, _windows("forward", x.shape, size, x.dtype), len(x.shape), x=x)
    return adaptive_averages(build, x, size)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of `adaptive_average_pool`."""
    size = dy.shape[-2:]
    if _multiples(x.shape[-2:], size):
        return _pooled(build, _windows("backward", x.shape, size, x.dtype), len(x.shape), dy=dy)
    return adaptive_averages_backward(build, dy, x.shape[-2:])


def _softmax(direction: str, x: Operand, axis: int, log: bool) -> SoftmaxProblem:
    axis = axis_of(axis, len(x.shape))
    shape = x.shape or (1,)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return SoftmaxProblem(direction, outer, shape[axis], inner, log, x.dtype)


@lowers(aten._softmax.default)
def softmax(build: Builder, x: Operand, axis: int, to_float: bool) -> Operand:
    """Return the softmax along an axis."""
    x = build.cast(x, "float32") if to_float else x
    return build.run(_softmax("forward", x, axis, False), {"x": x}, {"scale": 1.0}, {"y": x.shape})["y"]


@lowers(aten._safe_softmax.default)
def safe_softmax(build: Builder, x: Operand, axis: int, dtype: Any = None) -> Operand:
    """Return the softmax along an axis; where all values are minus infinity, 0."""
    if not x.size:
        raise NotLowered(f"[torch] got shape {x.shape} of a softmax, expected elements")
    x = x if dtype is None else build.cast(x, DTYPES[dtype])
    top = build.reduced("y0 = x0;", [x], [axis_of(axis, len(x.shape))], True, "max")
    y = softmax(build, x, axis, False)
    return build.pointwise("y0 = isinf(x1) && x1 < 0 ? 0 : x0;", [y, top])[0]


@lowers(aten._log_softmax.default)
def log_softmax(build: Builder, x: Operand, axis: int, to_float: bool) -> Operand:
    """Return the logarithm of the softmax along an axis."""
    x = build.cast(x, "float32") if to_float else x
    return build.run(_softmax("forward", x, axis, True), {"x": x}, {"scale": 1.0}, {"y": x.shape})["y"]


@lowers(aten._softmax_backward_data.default)
def softmax_backward(build: Builder, dy: Operand, y: Operand, axis: int, dtype: Any) -> Operand:
    """Return the gradient of `softmax`."""
    problem = _softmax("backward", dy, axis, False)
    return build.run(problem, {"y": y, "dy": dy}, {"scale": 1.0}, {"dx": dy.shape})["dx"]


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(build: Builder, dy: Operand, y: Operand, axis: int, dtype: Any) -> Operand:
    """Return the gradient of `log_softmax`."""
    problem = _softmax("backward", dy, axis, True)
    return build.run(problem, {"y": y, "dy": dy}, {"scale": 1.0}, {"dx": dy.shape})["dx"]
