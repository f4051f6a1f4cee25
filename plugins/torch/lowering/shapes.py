"""Views, joins, cuts, padding and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from clgraft.core.nn import shapes as nn
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import DTYPES, NEW, NotLowered, Operand, axis_of, widest

aten = torch.ops.aten
LAST = 2**63 - 1  # PyTorch's end of a slice without an end


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(build: Builder, x: Operand, shape: Sequence[int]) -> Operand:
    """Return x in another shape."""
    return build.reshaped(x, shape)


@lowers(
    aten.clone.default, aten.detach.default, aten.alias.default, aten.contiguous.default, aten.lift_fresh_copy.default
)
def same(build: Builder, x: Operand, memory_format: Any = None) -> Operand:
    """Return x itself: values of a graph are never changed in place."""
    return x


@lowers(aten.permute.default)
def permute(build: Builder, x: Operand, order: Sequence[int]) -> Operand:
    """Return x with its axes in another order."""
    return x.permuted([axis_of(axis, len(x.shape)) for axis in order])


@lowers(aten.transpose.int)
def transpose(build: Builder, x: Operand, first: int, second: int) -> Operand:
    """Return x with two axes exchanged."""
    order = list(range(len(x.shape)))
    a, b = axis_of(first, len(order)), axis_of(second, len(order))
    order[a], order[b] = order[b], order[a]
    return x.permuted(order)


@lowers(aten.t.default)
def turn(build: Builder, x: Operand) -> Operand:
    """Return a matrix with its axes exchanged; a vector as it is."""
    return x.permuted(range(len(x.shape))[::-1])


@lowers(aten.expand.default)
def expand(build: Builder, x: Operand, shape: Sequence[int], implicit: bool = False) -> Operand:
    """Return x repeated along axes of size 1."""
    return x.expanded(shape)


@lowers(aten.unsqueeze.default)
def unsqueeze(build: Builder, x: Operand, axis: int) -> Operand:
    """Return x with a new axis of size 1."""
    place = axis_of(axis, len(x.shape) + 1)
    axes, shape = list(x.axes), list(x.shape)
    axes.insert(place, NEW)
    shape.insert(place, 1)
    return Operand(x.name, x.stored, tuple(axes), tuple(shape), x.dtype)


@lowers(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def squeeze(build: Builder, x: Operand, axes: Any = None) -> Operand:
    """Return x without axes of size 1."""
    chosen = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    dropped = {axis_of(axis, len(x.shape)) for axis in chosen} & {i for i, size in enumerate(x.shape) if size == 1}
    return build.reshaped(x, [size for i, size in enumerate(x.shape) if i not in dropped])


@lowers(aten.cat.default)
def cat(build: Builder, parts: Sequence[Operand], axis: int = 0) -> Operand:
    """Return tensors joined along an axis; PyTorch ignores vectors without elements."""
    parts = [part for part in parts if part.shape != (0,)] or list(parts[:1])
    dtype, axis = widest(*parts), axis_of(axis, len(parts[0].shape))
    found: Operand = build.taken(nn.joined(build.nn, [build.given(part, dtype) for part in parts], axis))
    return found


def _parts(build: Builder, x: Operand, axis: int, extents: Sequence[int]) -> list[Operand]:
    shape, axis = x.shape, axis_of(axis, len(x.shape))
    if sum(extents) != shape[axis]:
        raise NotLowered(f"[torch] got sizes {tuple(extents)} of {shape[axis]}, expected their sum")
    return [build.taken(part) for part in nn.split(build.nn, build.given(x), axis, extents)]


@lowers(aten.split_with_sizes.default)
def split_with_sizes(build: Builder, x: Operand, extents: Sequence[int], axis: int = 0) -> list[Operand]:
    """Return the parts of x along an axis."""
    return _parts(build, x, axis, extents)


@lowers(aten.split.Tensor)
def split(build: Builder, x: Operand, extent: int, axis: int = 0) -> list[Operand]:
    """Return parts of x of one size along an axis; the last may be smaller."""
    whole = x.shape[axis_of(axis, len(x.shape))]
    return _parts(build, x, axis, nn.parts_of(whole, length=extent) or [0])


def _box(build: Builder, x: Operand, axis: int, begin: int, count: int, step: int = 1) -> Operand:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    begins = tuple(begin if i == axis else 0 for i in range(len(shape)))
    steps = () if step == 1 else tuple(step if i == axis else 1 for i in range(len(shape)))
    return build.taken(nn.cut(build.nn, build.given(x), shape, begins, steps))  # type: ignore[no-any-return]


@lowers(aten.slice.Tensor)
def slice_(
    build: Builder, x: Operand, axis: int = 0, begin: int | None = None, end: int | None = None, step: int = 1
) -> Operand:
    """Return a part of x along an axis."""
    axis = axis_of(axis, len(x.shape))
    first, count = nn.section(x.shape[axis], begin, None if end == LAST else end, step)
    if count == x.shape[axis]:
        return x
    return _box(build, x, axis, first if count else 0, count, step if count > 1 else 1)


@lowers(aten.select.int)
def select(build: Builder, x: Operand, axis: int, index: int) -> Operand:
    """Return one element of x along an axis, which goes."""
    axis = axis_of(axis, len(x.shape))
    found = _box(build, x, axis, index % x.shape[axis], 1)
    return build.reshaped(found, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _put_back(build: Builder, dy: Operand, shape: Sequence[int], axis: int, begin: int, step: int = 1) -> Operand:
    begins = tuple(begin if i == axis else 0 for i in range(len(shape)))
    steps = () if step == 1 else tuple(step if i == axis else 1 for i in range(len(shape)))
    return build.taken(nn.in_constant(build.nn, build.given(dy), shape, begins, step=steps))  # type: ignore[no-any-return]


@lowers(aten.slice_backward.default)
def slice_backward(
    build: Builder, dy: Operand, shape: Sequence[int], axis: int, begin: int, end: int, step: int
) -> Operand:
    """Return the gradient of `slice_`."""
    axis = axis_of(axis, len(shape))
    first, _ = nn.section(shape[axis], begin, None if end == LAST else end)
    return _put_back(build, dy, shape, axis, first if dy.shape[axis] else 0, step if dy.shape[axis] > 1 else 1)


@lowers(aten.select_backward.default)
def select_backward(build: Builder, dy: Operand, shape: Sequence[int], axis: int, index: int) -> Operand:
    """Return the gradient of `select`."""
    axis = axis_of(axis, len(shape))
    row = build.reshaped(dy, (*shape[:axis], 1, *shape[axis + 1 :]))
    return _put_back(build, row, shape, axis, index % shape[axis])


@lowers(aten.constant_pad_nd.default)
def pad(build: Builder, x: Operand, widths: Sequence[int], value: float = 0) -> Operand:
    """Return x with a number around it; negative widths cut."""
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for axis, low, high in zip(reversed(range(len(before))), widths[::2], widths[1::2]):
        before[axis], after[axis] = low, high
    return build.taken(nn.padded(build.nn, build.given(x), before, after, value))  # type: ignore[no-any-return]


@lowers(aten.full.default)
def full(build: Builder, shape: Sequence[int], value: float, **kind: Any) -> Operand:
    """Return one number at every place."""
    return build.filled(shape, float(value), _dtype(kind))


@lowers(aten.zeros.default)
def zeros(build: Builder, shape: Sequence[int], **kind: Any) -> Operand:
    """Return zeros."""
    return build.filled(shape, 0.0, _dtype(kind))


@lowers(aten.ones.default)
def ones(build: Builder, shape: Sequence[int], **kind: Any) -> Operand:
    """Return ones."""
    return build.filled(shape, 1.0, _dtype(kind))


def _dtype(kind: Mapping[str, Any]) -> str:
    """Return the core's name of the dtype that a call asks for."""
    return str(kind.get("dtype") or torch.get_default_dtype()).rsplit(".", 1)[-1]


@lowers(aten.new_zeros.default)
def new_zeros(build: Builder, x: Operand, shape: Sequence[int], **kind: Any) -> Operand:
    """Return zeros of another tensor's dtype."""
    return build.filled(shape, 0.0, x.dtype)


@lowers(aten.copy.default)
def copy(build: Builder, x: Operand, source: Operand, asynchronous: bool = False) -> Operand:
    """Return `source` repeated to the shape of x, whose values are not read."""
    return source.expanded(x.shape)


@lowers(aten.as_strided.default, aten.as_strided_scatter.default)
def as_strided(build: Builder, x: Operand, *view: Any) -> Operand:
    """Refuse a view by strides: those that keep the order of elements have become shapes (see `views`)."""
    raise NotLowered("its strides change the order of elements")


@lowers(aten._to_copy.default)
def to_copy(build: Builder, x: Operand, dtype: Any = None, **more: Any) -> Operand:
    """Return x in another dtype."""
    return x if dtype is None else build.cast(x, DTYPES[dtype])


@lowers(aten.full_like.default)
def full_like(build: Builder, x: Operand, value: float, **kind: Any) -> Operand:
    """Return one number at every place of x."""
    return build.filled(x.shape, float(value), x.dtype)


@lowers(aten.zeros_like.default)
def zeros_like(build: Builder, x: Operand, **kind: Any) -> Operand:
    """Return zeros of the shape of x."""
    return build.filled(x.shape, 0.0, x.dtype)


@lowers(aten.ones_like.default)
def ones_like(build: Builder, x: Operand, **kind: Any) -> Operand:
    """Return ones of the shape of x."""
    return build.filled(x.shape, 1.0, x.dtype)
