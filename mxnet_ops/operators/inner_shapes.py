"""Rows of `INNER`: shapes, parts and repetitions of data, and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clgraft.core import ProblemError
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Shape
from clgraft.mxnet_ops.operators.inner import (
    FLOATS,
    INNER,
    MOST_CONSTANT,
    InnerRow,
    expect,
    flag,
    integer,
    number,
    place,
    real,
    row,
    same,
    shape,
    sizes,
    word,
)


def reshaped(
    data: Shape,
    shape: Sequence[int],
    reverse: bool = False,
    target_shape: Sequence[int] = (),
    keep_highest: bool = False,
) -> Shape:
    """Return the shape that MXNet's Reshape makes of data's.

    0 keeps a size, -1 is what is left, -2 all further sizes, -3 the product of two, and -4 splits one into the two
    numbers after it, of which one may be -1. With `reverse` both are read from the end. Before MXNet 0.9 there was a
    `target_shape`, where 0 is what is left.

    Raises
    ------
    ProblemError
        If the sizes do not fit.
    """
    given, wanted = list(data), list(shape)
    if not wanted and target_shape:
        kept = [data[0], *target_shape[1:]] if keep_highest else target_shape
        return reshaped(data, [size or -1 for size in kept])
    if reverse:
        given.reverse()
        wanted.reverse()
    made: list[int] = []
    at, open_, i = 0, -1, 0
    try:
        while i < len(wanted):
            code = wanted[i]
            if code == 0:
                made.append(given[at])
                at += 1
            elif code == -1:
                expect(open_ < 0, f"shape {tuple(shape)}", "at most one -1")
                open_ = len(made)
                made.append(1)
                at += 1
            elif code == -2:
                made += given[at:]
                at = len(given)
            elif code == -3:
                made.append(given[at] * given[at + 1])
                at += 2
            elif code == -4:
                made += moves.filled_up(wanted[i + 1 : i + 3], given[at])
                at, i = at + 1, i + 2
            else:
                made.append(code)
                at += 1
            i += 1
        if open_ >= 0:
            made[open_] = -1
            made = list(moves.filled_up(made, math.prod(data)))
    except (IndexError, ZeroDivisionError):
        made = []
    if math.prod(made) != math.prod(data) or min(made, default=-1) < 0:
        raise ProblemError(f"[ocl_inner] got shape {tuple(shape)}, expected one for data of shape {data}")
    return tuple(reversed(made)) if reverse else tuple(made)


def _squeezed(data: Shape, axis: Sequence[int]) -> Shape:
    gone = {place(one, len(data)) for one in axis} if axis else {i for i, size in enumerate(data) if size == 1}
    if any(data[one] != 1 for one in gone):
        raise ProblemError(f"[ocl_inner] got axis {tuple(axis)}, expected axes of size 1 of data of shape {data}")
    return moves.without_ones(data, gone) or (1,)


def _expanded(data: Shape, axis: int) -> Shape:
    return moves.with_ones(data, {place(axis, len(data) + 1)})


def _like(data: Shape, like: Shape, **bounds: int | None) -> Shape:
    low, high = bounds.get("lhs_begin"), bounds.get("lhs_end")
    inside = like[bounds.get("rhs_begin") : bounds.get("rhs_end")]
    return (*data[: low or 0], *inside, *(data[high:] if high is not None else ()))


def _alike(build: Build, x: Tensor, like: Tensor, axes: Sequence[int]) -> Tensor:
    chosen = {place(axis, x.ndim) for axis in axes} if axes else set(range(x.ndim))
    size = tuple(like.shape[axis] if axis in chosen else size for axis, size in enumerate(x.shape))
    return moves.cut(build, x, size, (0,) * x.ndim)


def _broadcast_axes(build: Build, x: Tensor, axis: Sequence[int], size: Sequence[int]) -> Tensor:
    expect(len(axis) == len(size), f"size {tuple(size)}", f"{len(axis)} numbers, as many as axis {tuple(axis)}")
    wanted = {place(one, x.ndim): number for one, number in zip(axis, size)}
    return moves.broadcast(build, x, tuple(wanted.get(i, own) for i, own in enumerate(x.shape)))


def _broadcast_to(build: Build, x: Tensor, shape: Sequence[int]) -> Tensor:
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return moves.broadcast(build, x, tuple(wanted or size for wanted, size in zip(shape, own)))


def _broadcast_like(build: Build, x: Tensor, like: Tensor, lhs_axes: Sequence[int], rhs_axes: Sequence[int]) -> Tensor:
    if not lhs_axes:
        return moves.broadcast(build, x, like.shape)
    return _broadcast_axes(build, x, lhs_axes, [like.shape[place(axis, like.ndim)] for axis in rhs_axes])


def _turned(build: Build, x: Tensor, axis: Sequence[int]) -> Tensor:
    return moves.turned(build, x, {place(one, x.ndim) for one in axis})


def _range(
    build: Build, dtype: str, start: float, step: float, repeat: int, stop: float | None = None, **_: Any
) -> Tensor:
    begin, end = (0.0, start) if stop is None else (start, stop)
    count = moves.count_between(begin, end, step)
    expect(count * repeat <= MOST_CONSTANT, f"{count * repeat} numbers", f"at most {MOST_CONSTANT} of a constant")
    numbers = moves.counted(build, count, begin, step, dtype)
    return numbers if repeat == 1 else moves.repeated(build, numbers, (repeat,), whole=False)


def _stop(attributes: Attributes, name: str) -> float | None:
    text = attributes.text(name, "")
    return float(text) if text else None


def _bound(attributes: Attributes, name: str) -> int | None:
    text = attributes.text(name, "")
    return int(text) if text else None


def _filled_like(value: float) -> InnerRow:
    return InnerRow(
        ("data",),
        lambda build, x, **_: moves.filled(build, x.shape, value, x.dtype),
        {"dtype": lambda attributes, name: attributes.text(name, "float32")},  # MXNet does not look at it
        view=True,
        outside=lambda given: "" if given["dtype"] in FLOATS else "its numbers are whole ones",
    )


def _filled(number_of: float | None) -> InnerRow:
    """Return the row of a constant; without a number it is an attribute."""

    def build(build: Build, dtype: str, shape: Shape, value: float | None = number_of, **_: Any) -> Tensor:
        assert value is not None
        return moves.filled(build, shape, value, dtype)

    more = {"value": number()} if number_of is None else {}
    return row("", build, view=True, shape=shape, dtype=real, **more)


def _codes(attributes: Attributes, name: str) -> tuple[int, ...]:
    return attributes.sizes(name, (), low=-4)


INNER.update(
    {
        "Reshape": same("data", reshaped, shape=_codes, reverse=flag, target_shape=sizes, keep_highest=flag),
        "Flatten": same("data", lambda data: moves.flattened(data, 1, len(data))),
        "expand_dims": same("data", _expanded, axis=integer()),
        "squeeze": same("data", _squeezed, axis=sizes),
        "reshape_like": same(
            "lhs rhs", _like, **dict.fromkeys(("lhs_begin", "lhs_end", "rhs_begin", "rhs_end"), _bound)
        ),
        "_copy": same("data", lambda data: data),
        "BlockGrad": row("data", lambda build, x: build.without_gradient(moves.copied(build, x, x.shape)), view=True),
        "SliceChannel": same(
            "data",
            lambda data, axis, squeeze_axis, **_: _squeezed(data, (axis,)) if squeeze_axis else data,
            num_outputs=word("1"),
            axis=integer(1),
            squeeze_axis=flag,
        ),
        "zeros_like": _filled_like(0.0),
        "ones_like": _filled_like(1.0),
        "_zeros": _filled(0.0),
        "_ones": _filled(1.0),
        "_full": _filled(None),
        "_arange": row(
            "",
            _range,
            view=True,
            start=number(0.0),
            stop=_stop,
            step=number(1.0),
            dtype=real,
            repeat=integer(1, 1),
            infer_range=word("False"),
        ),
        "shape_array": InnerRow(  # in sessions whole numbers are real ones
            ("data",),
            lambda build, x: moves.copied(build, build.constant(np.array(x.shape, x.dtype)), (x.ndim,)),
            outside=lambda given: "its numbers are whole ones",
        ),
        "slice_like": row("data shape_like", _alike, view=True, axes=sizes),
        "broadcast_like": row("lhs rhs", _broadcast_like, lhs_axes=sizes, rhs_axes=sizes),
        "broadcast_axis": row("data", _broadcast_axes, axis=sizes, size=sizes),
        "broadcast_to": row("data", _broadcast_to, shape=sizes),
        "reverse": row("data", _turned, axis=sizes),
    }
)
