"""Convolution, pooling and softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clgraft.core.nn import adaptive_averages
from clgraft.core.nn import convolution as convolutions
from clgraft.core.nn import pooling as nn
from clgraft.core.nn import softmax as nn_softmax
from clgraft.core.nn.builder import Tensor
from clgraft.plugins.torch import operators
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered, Operand, axis_of

aten = torch.ops.aten


def _spatial(values: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return one number per spatial axis; PyTorch repeats a single one."""
    return tuple(values) * ndim if len(values) == 1 else tuple(values)


def _sizes_of_convolution(
    ndim: int, stride: Sequence[int], pad: Sequence[int], dilate: Sequence[int], groups: int
) -> dict[str, Any]:
    """Return the words of `core.nn.convolution` for a convolution of some spatial axes."""
    if not 1 <= ndim <= 3:
        raise NotLowered(f"[torch] got a convolution of {ndim + 2} axes, expected 3 to 5")
    words = {"stride": stride, "pad": pad, "dilate": dilate}
    return {**{word: _spatial(sizes, ndim) for word, sizes in words.items()}, "groups": groups}


@lowers(aten.convolution.default)
def convolution(
    build: Builder,
    x: Operand,
    w: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    pad: Sequence[int],
    dilate: Sequence[int],
    transposed: bool,
    extra: Sequence[int],
    groups: int,
) -> Operand:
    """Return a convolution, or with `transposed` a deconvolution."""
    ndim = len(x.shape) - 2
    sizes = _sizes_of_convolution(ndim, stride, pad, dilate, groups)
    given = [build.given(one, x.dtype) for one in (x, w, bias) if one is not None]
    if transposed:
        y = convolutions.deconvolution(build.nn, *given, **sizes, extra=_spatial(extra, ndim))
    else:
        y = convolutions.convolution(build.nn, *given, **sizes)
    return build.taken(y)  # type: ignore[no-any-return]


@lowers(aten.convolution_backward.default)
def convolution_backward(
    build: Builder,
    dy: Operand,
    x: Operand,
    w: Operand,
    bias_sizes: Any,
    stride: Sequence[int],
    pad: Sequence[int],
    dilate: Sequence[int],
    transposed: bool,
    extra: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Operand | None, ...]:
    """Return the wanted gradients of a convolution: of x, of the weights, of the bias."""
    ndim = len(x.shape) - 2
    sizes = _sizes_of_convolution(ndim, stride, pad, dilate, groups)
    given = build.given(dy, x.dtype), build.given(x), build.given(w, x.dtype)
    if transposed:
        more = {**sizes, "extra": _spatial(extra, ndim)}
        found = convolutions.deconvolution_gradients(build.nn, *given, wanted, **more)
    else:
        found = convolutions.convolution_gradients(build.nn, *given, wanted, **sizes)
    return tuple(build.taken(one) for one in found)


def _windows(
    kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], ceil: bool, **more: Any
) -> dict[str, Any]:
    """Return the sizes of windows as functions of the core take them."""
    sizes = {"kernel": _spatial(kernel, 2), "pad": _spatial(pad, 2)}
    sizes["stride"] = _spatial(stride, 2) if stride else sizes["kernel"]
    if ceil and any(s > k for s, k in zip(sizes["stride"], sizes["kernel"])):
        raise NotLowered("[torch] got ceil_mode with a stride above the kernel's size, expected none")
    return {**sizes, "rounding": "ceil_inside" if ceil else "floor", "keep_nan": True, **more}


def _max_windows(attributes: Sequence[Any]) -> dict[str, Any]:
    """Return the attributes of max pooling as functions of the core take them."""
    defaults: tuple[Any, ...] = ((), (0,), (1,), False)
    kernel, stride, pad, dilate, ceil = (*attributes, *defaults[len(attributes) - 1 :])
    if set(dilate) != {1}:
        raise NotLowered(f"[torch] got dilation {list(dilate)} of a pooling, expected 1")
    return _windows(kernel, stride, pad, ceil)


def _average_windows(attributes: Sequence[Any]) -> dict[str, Any]:
    """Return the attributes of average pooling as functions of the core take them."""
    defaults: tuple[Any, ...] = ((), (0,), False, True, None)
    kernel, stride, pad, ceil, count, divisor = (*attributes, *defaults[len(attributes) - 1 :])
    return _windows(kernel, stride, pad, ceil, count_padding=count, divisor=divisor)


def _pooled(build: Builder, operator: str, x: Operand, windows: Mapping[str, Any]) -> Operand:
    """Return the pooling of an image or of several."""
    y = nn.pool(build.nn, _images(build, x, 2), operator, **windows)
    return build.taken(y, y.shape[4 - len(x.shape) :])  # type: ignore[no-any-return]


@lowers(aten.max_pool2d_with_indices.default)
def max_pool(build: Builder, x: Operand, *attributes: Any) -> tuple[Operand, None]:
    """Return the maxima of windows; their indices are never asked for (see `joint`)."""
    return _pooled(build, "max", x, _max_windows(attributes)), None


def _pooled_gradient(
    build: Builder, operator: str, dy: Operand, x: Operand, known: Sequence[Operand], windows: Mapping[str, Any]
) -> Operand:
    """Return the gradient of a pooling."""
    whole = (1,) * (4 - len(x.shape)) + x.shape
    read = [build.given(one, x.dtype, (1,) * (4 - len(x.shape)) + one.shape) for one in known]
    given = build.given(dy, x.dtype, (1,) * (4 - len(x.shape)) + dy.shape)
    found = nn.pool_gradient(build.nn, given, whole, operator, known=read, **windows)
    return build.taken(found, x.shape)  # type: ignore[no-any-return]


@lowers(operators.max_pool_backward)
def max_pool_backward(build: Builder, dy: Operand, x: Operand, y: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `max_pool`, which goes to the first maximum of each window."""
    return _pooled_gradient(build, "max", dy, x, (x, y), _max_windows(attributes))


@lowers(aten.avg_pool2d.default)
def average_pool(build: Builder, x: Operand, *attributes: Any) -> Operand:
    """Return the averages of windows."""
    return _pooled(build, "average", x, _average_windows(attributes))


@lowers(aten.avg_pool2d_backward.default)
def average_pool_backward(build: Builder, dy: Operand, x: Operand, *attributes: Any) -> Operand:
    """Return the gradient of `average_pool`."""
    return _pooled_gradient(build, "average", dy, x, (), _average_windows(attributes))


def _images(build: Builder, x: Operand, ndim: int) -> Tensor:
    """Return images with an axis for the batch, which a single one lacks."""
    return build.given(x, "", (1,) * (ndim + 2 - len(x.shape)) + x.shape)


@lowers(aten._adaptive_avg_pool2d.default)
def adaptive_average_pool(build: Builder, x: Operand, size: Sequence[int]) -> Operand:
    """Return averages at a given number of places."""
    y = adaptive_averages.adaptive_average_pool(build.nn, _images(build, x, len(size)), size, learned=False)
    return build.taken(y, (*x.shape[: -len(size)], *size))  # type: ignore[no-any-return]


@lowers(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(build: Builder, dy: Operand, x: Operand) -> Operand:
    """Return the gradient of `adaptive_average_pool`."""
    dx = adaptive_averages.adaptive_average_pool_gradient(build.nn, _images(build, dy, 2), x.shape[-2:])
    return build.taken(dx, x.shape)  # type: ignore[no-any-return]


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(build: Builder, x: Operand, size: Sequence[int]) -> tuple[Operand, None]:
    """Return maxima at a given number of places; their indices are never asked for (see `joint`)."""
    (y,) = nn.adaptive_max_pool(build.nn, _images(build, x, len(size)), size, keep_nan=True)
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
