"""Operators that only regions have: MXNet's that change shapes and no numbers, constants, and others that go with them.

Alone they would cost a call and a copy where MXNet's own cost nothing. In a region they are views, or a part of what is
computed anyway; outside of it they would split it. Each is one row of `INNER`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, ClassVar

import numpy as np

from clgraft.core import ProblemError
from clgraft.core.nn import elementwise, products
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

Reader = Callable[[Attributes, str], Any]
FLOATS = ("float32", "float16", "float64")
BACKENDS = ("ctx",)  # attributes that say where MXNet computes


@dataclass(frozen=True)
class Row:
    """What is known of one of MXNet's operators.

    Attributes
    ----------
    arguments : tuple of str
    build : callable
        Gets a builder, the inputs, and the attributes by name; a constant gets the dtype of the region as well.
    view : bool
        Whether it computes nothing.
    copy : bool
        Whether it is the first input in another shape.
    readers : mapping of str to callable
        How attributes are read.
    """

    arguments: tuple[str, ...]
    build: Callable[..., Tensor]
    view: bool
    copy: bool
    readers: Mapping[str, Reader]


def row(arguments: str, build: Callable[..., Tensor], *, view: bool = True, **readers: Reader) -> Row:
    """Return a row of the table."""
    return Row(tuple(arguments.split()), build, view, False, readers)


def same(arguments: str, shape_of: Callable[..., Shape], **readers: Reader) -> Row:
    """Return the row of what is data in another shape, which a function tells from the inputs' and the attributes."""

    def build(build: Build, x: Tensor, *more: Tensor, **given: Any) -> Tensor:
        shape = shape_of(x.shape, *(one.shape for one in more), **given)
        if math.prod(shape) != x.size:
            raise ProblemError(f"[ocl_inner] got data of shape {x.shape}, expected as many elements as {shape} has")
        return moves.copied(build, x, shape)

    return Row(tuple(arguments.split()), build, True, True, readers)


def _integer(attributes: Attributes, name: str) -> int:
    return attributes.integer(name)


def _flag(attributes: Attributes, name: str) -> bool:
    return attributes.flag(name, False)


def _number(default: float | None) -> Reader:
    return lambda attributes, name: attributes.number(name, default)


def _sizes(attributes: Attributes, name: str) -> tuple[int, ...]:
    return attributes.sizes(name, (), low=-32)


def _shape(attributes: Attributes, name: str) -> tuple[int, ...]:
    return attributes.sizes(name, low=-4)


def _real(attributes: Attributes, name: str) -> str:
    return attributes.choice(name, FLOATS, "float32")


def _only(*texts: str) -> Reader:
    """Accept an attribute that has one of these values, or is not given."""

    def read(attributes: Attributes, name: str) -> str:
        return attributes.choice(name, texts, texts[0])

    return read


def reshaped(data: Shape, shape: Sequence[int], reverse: bool) -> Shape:
    """Return the shape that MXNet's Reshape makes of data's.

    0 keeps a size, -1 is what is left, -2 all further sizes, -3 the product of two, and -4 splits one into the two
    numbers after it, of which one may be -1. With `reverse` both are read from the end.

    Raises
    ------
    ProblemError
        If the sizes do not fit.
    """
    given, wanted = list(data), list(shape)
    if reverse:
        given.reverse()
        wanted.reverse()
    made: list[int] = []
    place, open_, i = 0, -1, 0
    try:
        while i < len(wanted):
            code = wanted[i]
            if code == 0:
                made.append(given[place])
                place += 1
            elif code == -1:
                open_ = i
                made.append(1)
                place += 1
            elif code == -2:
                made += given[place:]
                place = len(given)
            elif code == -3:
                made.append(given[place] * given[place + 1])
                place += 2
            elif code == -4:
                first, second = wanted[i + 1], wanted[i + 2]
                made += [
                    given[place] // second if first == -1 else first,
                    given[place] // first if second == -1 else second,
                ]
                place, i = place + 1, i + 2
            else:
                made.append(code)
                place += 1
            i += 1
        if open_ >= 0:
            made[open_] = math.prod(data) // math.prod(made)
    except (IndexError, ZeroDivisionError):
        made = []
    if math.prod(made) != math.prod(data) or min(made, default=-1) < 0:
        raise ProblemError(f"[ocl_inner] got shape {tuple(shape)}, expected one for data of shape {data}")
    return tuple(reversed(made)) if reverse else tuple(made)


def _squeezed(data: Shape, axis: Sequence[int]) -> Shape:
    ndim = len(data)
    gone = {one % ndim for one in axis} if axis else {place for place in range(ndim) if data[place] == 1}
    if any(data[place] != 1 for place in gone):
        raise ProblemError(f"[ocl_inner] got axis {tuple(axis)}, expected axes of size 1 of data of shape {data}")
    return tuple(size for place, size in enumerate(data) if place not in gone) or (1,)


def _expanded(data: Shape, axis: int) -> Shape:
    place = axis % (len(data) + 1)
    return (*data[:place], 1, *data[place:])


def _alike(build: Build, x: Tensor, like: Tensor, axes: Sequence[int]) -> Tensor:
    chosen = {axis % x.ndim for axis in axes} if axes else set(range(x.ndim))
    size = tuple(like.shape[axis] if axis in chosen else size for axis, size in enumerate(x.shape))
    return moves.cut(build, x, size, (0,) * x.ndim)


def _broadcast_axes(build: Build, x: Tensor, axis: Sequence[int], size: Sequence[int]) -> Tensor:
    sizes = {one % x.ndim: wanted for one, wanted in zip(axis, size)}
    return moves.broadcast(build, x, tuple(sizes.get(place, own) for place, own in enumerate(x.shape)))


def _broadcast_to(build: Build, x: Tensor, shape: Sequence[int]) -> Tensor:
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return moves.broadcast(build, x, tuple(wanted or size for wanted, size in zip(shape, own)))


def _range(build: Build, dtype: str, start: float, stop: float | None, step: float, **_: Any) -> Tensor:
    begin, end = (0.0, start) if stop is None else (start, stop)
    return moves.counted(build, max(0, math.ceil((end - begin) / step)), begin, step, dtype)


def _stop(attributes: Attributes, name: str) -> float | None:
    text = attributes.text(name, "")
    return float(text) if text else None


def _bound(attributes: Attributes, name: str) -> int | None:
    text = attributes.text(name, "")
    return int(text) if text else None


def _where(build: Build, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if condition.ndim == 1 and x.ndim > 1:
        condition = build.reshape(condition, (*condition.shape, *(1,) * (x.ndim - 1)))
    return elementwise.selected(build, condition, x, y)


def _batch_dot(build: Build, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return products.batch_product(build, a, b, transposed_a=transpose_a, transposed_b=transpose_b)


def _filled_like(value: float) -> Row:
    return row("data", lambda build, x: moves.filled(build, x.shape, value, x.dtype))


def _filled(value: float) -> Row:
    """Return the row of a constant."""

    def build(build: Build, dtype: str, shape: Shape, **_: Any) -> Tensor:
        return moves.filled(build, shape, value, dtype)

    return row("", build, shape=_shape, dtype=_real)


def _compared(comparison: str) -> Row:
    def build(build: Build, x: Tensor, scalar: float, **_: Any) -> Tensor:
        return elementwise.compared(build, x, comparison, float(np.dtype(x.dtype).type(scalar)))  # as MXNet has it

    return row("data", build, view=False, scalar=_number(1.0), is_int=_flag)


COMPARISONS = {
    "_equal_scalar": "equal",
    "_not_equal_scalar": "not_equal",
    "_greater_scalar": "greater",
    "_greater_equal_scalar": "greater_or_equal",
    "_lesser_scalar": "less",
    "_lesser_equal_scalar": "less_or_equal",
}
INNER: dict[str, Row] = {
    "Reshape": same("data", reshaped, shape=_shape, reverse=_flag),
    "Flatten": same("data", lambda data: (data[0], math.prod(data[1:]))),
    "expand_dims": same("data", _expanded, axis=_integer),
    "squeeze": same("data", _squeezed, axis=_sizes),
    "reshape_like": same(
        "lhs rhs",
        lambda data, like, lhs_begin, lhs_end, rhs_begin, rhs_end: (
            *data[: lhs_begin or 0],
            *like[rhs_begin:rhs_end],
            *(data[lhs_end:] if lhs_end is not None else ()),
        ),
        **dict.fromkeys(("lhs_begin", "lhs_end", "rhs_begin", "rhs_end"), _bound),
    ),
    "_copy": same("data", lambda data: data),
    "BlockGrad": row("data", lambda build, x: build.without_gradient(moves.copied(build, x, x.shape))),
    "SliceChannel": same(
        "data",
        lambda data, axis, squeeze_axis, **_: _squeezed(data, (axis,)) if squeeze_axis else data,
        num_outputs=_only("1"),
        axis=lambda attributes, name: attributes.integer(name, 1),
        squeeze_axis=_flag,
    ),
    "zeros_like": _filled_like(0.0),
    "ones_like": _filled_like(1.0),
    "_zeros": _filled(0.0),
    "_ones": _filled(1.0),
    "_arange": row(
        "",
        _range,
        start=_number(0.0),
        stop=_stop,
        step=_number(1.0),
        dtype=_real,
        repeat=_only("1"),
        infer_range=_only("False"),
    ),
    "slice_like": row("data shape_like", lambda build, x, like, axes: _alike(build, x, like, axes), axes=_sizes),
    "broadcast_like": row("lhs rhs", lambda build, x, like: moves.broadcast(build, x, like.shape), view=False),
    "broadcast_axis": row("data", _broadcast_axes, view=False, axis=_sizes, size=_sizes),
    "broadcast_to": row("data", _broadcast_to, view=False, shape=_sizes),
    "batch_dot": row("lhs rhs", _batch_dot, view=False, transpose_a=_flag, transpose_b=_flag),
    "where": row("condition x y", _where, view=False),
    **{name: _compared(comparison) for name, comparison in COMPARISONS.items()},
}


@register
@dataclass(frozen=True)
class Inner(Operator):
    """``ocl_inner``: what one of the operators of `INNER` computes; the swap puts it into regions alone.

    Parameters
    ----------
    function : str
        MXNet's name of the operator; the other attributes are that operator's.
    """

    op_type: ClassVar[str] = "ocl_inner"

    function: str
    given: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"  # of a constant: the region's

    @property
    def arguments(self) -> tuple[str, ...]:
        return INNER[self.function].arguments

    @property
    def is_view(self) -> bool:  # type: ignore[override]
        """Whether it computes nothing."""
        return INNER[self.function].view

    @property
    def is_copy(self) -> bool:  # type: ignore[override]
        """Whether its output is its first input in another shape."""
        return INNER[self.function].copy

    @classmethod
    def read(cls, attributes: Attributes) -> Inner:
        function = attributes.choice("function", INNER)
        given = tuple((name, reader(attributes, name)) for name, reader in INNER[function].readers.items())
        attributes.ignore(*BACKENDS)
        return cls(function, given)

    @property
    def open_sizes(self) -> int:  # type: ignore[override]
        shape = dict(self.given).get("shape", ()) if not self.arguments else ()
        return sum(size < 1 for size in shape)

    def of_size(self, size: int) -> Inner:
        shape = dict(self.given).get("shape", ())
        return (
            self.as_constant(tuple(own if own > 0 else size for own in shape), self.dtype) if self.open_sizes else self
        )

    def as_constant(self, shape: Shape, dtype: str) -> Inner:
        return replace(self, given=tuple({**dict(self.given), "shape": shape}.items()), dtype=dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or self.open_sizes:
            return None
        try:
            return known, self.built(known), []
        except (IndexError, ZeroDivisionError):
            raise self.error("inputs", f"of shapes {known}", f"some that fit {self.function}") from None

    def build(self, build: Build, *values: Tensor) -> Tensor:
        given = dict(self.given)
        if not self.arguments:
            given["dtype"] = self.dtype
        return INNER[self.function].build(build, *values, **given)
