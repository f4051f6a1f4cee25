"""``ocl_inner``: operators of MXNet's that only regions have, and sessions of symbols.

Most of them change shapes and no numbers, or are constants. Alone they would cost a call and a copy where MXNet's own
cost nothing. In a region they are views, or a part of what is computed anyway; outside of it they would split it. Each
is one row of `INNER`, which the modules whose names begin with this one's fill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ClassVar, Union

from clgraft.core import ProblemError
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Draw, Operator, Shape, Shapes
from clgraft.mxnet_ops.engine.registry import register

Given = Mapping[str, Any]  # attributes as they were read, by name
Reader = Callable[[Attributes, str], Any]
Names = Union["tuple[str, ...]", Callable[[Given], "tuple[str, ...]"]]
FLOATS = ("float32", "float16", "float64")
BACKENDS = ("ctx",)  # attributes that say where MXNet computes
MOST_CONSTANT = 2**26  # elements of a constant
FAULTS = (IndexError, ZeroDivisionError, ValueError, OverflowError)


@dataclass(frozen=True)
class InnerRow:
    """What is known of one of MXNet's operators.

    Attributes
    ----------
    arguments, outputs : tuple of str, or a function of the attributes
    build : callable
        Gets a builder, the inputs, keys of random numbers, and the attributes by name; a constant gets the dtype of the
        region as well.
    readers : mapping of str to callable
        How attributes are read.
    view : bool
        Whether it computes nothing.
    copy : bool
        Whether it is the first input in another shape.
    casts : bool
        Whether its outputs have a type of their own.
    real : bool
        Whether MXNet computes it of real numbers alone.
    inferred, learned, whole : tuple of str
        Inputs whose shapes follow from those of others, those that are parameters, and those that are whole numbers in
        MXNet, which a region gets as float32.
    shapes : callable, optional
        Gets the attributes and the known shapes of the inputs, and returns those of inputs and outputs, or None if too
        few are known. By default all inputs are, and what is built tells the outputs.
    keys : callable
        How many keys of random numbers it needs when training.
    outside : callable
        Why regions leave it to MXNet; nothing if they do not.
    """

    arguments: Names
    build: Callable[..., Any]
    readers: Mapping[str, Reader] = field(default_factory=dict)
    view: bool = False
    copy: bool = False
    casts: bool = False
    real: bool = False
    outputs: Names = ("output",)
    inferred: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    shapes: Callable[[Given, Sequence[Shape | None]], tuple[list[Shape], list[Shape]] | None] | None = None
    keys: Callable[[Given], int] = lambda given: 0
    outside: Callable[[Given], str] = lambda given: ""


INNER: dict[str, InnerRow] = {}


def row(arguments: str, build: Callable[..., Any], *, view: bool = False, **readers: Reader) -> InnerRow:
    """Return a row of the table."""
    return InnerRow(tuple(arguments.split()), build, readers, view)


def same(arguments: str, shape_of: Callable[..., Shape], **readers: Reader) -> InnerRow:
    """Return the row of what is data in another shape, which a function tells from the inputs' and the attributes."""

    def build(build: Build, x: Tensor, *more: Tensor, **given: Any) -> Tensor:
        shape = shape_of(x.shape, *(one.shape for one in more), **given)
        if math.prod(shape) != x.size:
            raise ProblemError(f"[ocl_inner] got data of shape {x.shape}, expected as many elements as {shape} has")
        return moves.copied(build, x, shape)

    return InnerRow(tuple(arguments.split()), build, readers, view=True, copy=True)


def integer(default: int | None = None, low: int | None = None) -> Reader:
    """Return the reader of a whole number."""
    more = {} if low is None else {"low": low}
    return lambda attributes, name: attributes.integer(name, default, **more)


def flag(attributes: Attributes, name: str) -> bool:
    """Read a truth value that is False by default."""
    return attributes.flag(name, False)


def number(default: float | None = None) -> Reader:
    """Return the reader of a real number."""
    return lambda attributes, name: attributes.number(name, default)


def sizes(attributes: Attributes, name: str) -> tuple[int, ...]:
    """Read numbers of axes or sizes, none by default."""
    return attributes.sizes(name, (), low=-32)


def shape(attributes: Attributes, name: str) -> tuple[int, ...]:
    """Read a shape, which may have unknown sizes."""
    return attributes.sizes(name, low=-4)


def real(attributes: Attributes, name: str) -> str:
    """Read a type of real numbers."""
    return attributes.choice(name, FLOATS, "float32")


def word(*words: str) -> Reader:
    """Return the reader of one of several words; the first is the default."""
    return lambda attributes, name: attributes.choice(name, words, words[0])


def without(what: str) -> Reader:
    """Return the reader of an attribute that has to be absent."""

    def read(attributes: Attributes, name: str) -> None:
        text = attributes.text(name, "")
        if text not in ("", "False", "0"):
            raise attributes.error(name, text, f"none: there is no {what}")

    return read


def ignored(attributes: Attributes, name: str) -> None:
    """Accept an attribute that changes nothing."""
    attributes.ignore(name)


def place(axis: int, ndim: int) -> int:
    """Count a negative axis from the end.

    Raises
    ------
    ProblemError
        If there is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise ProblemError(f"[ocl_inner] got axis {axis}, expected one of {ndim}")
    return axis % ndim


def expect(good: bool, got: str, expected: str) -> None:
    """Raise `ProblemError` unless something holds."""
    if not good:
        raise ProblemError(f"[ocl_inner] got {got}, expected {expected}")


def _names(names: Names, given: Given) -> tuple[str, ...]:
    return names(given) if callable(names) else names


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
    def row(self) -> InnerRow:
        """What is known of it."""
        return INNER[self.function]

    @property
    def arguments(self) -> tuple[str, ...]:
        return _names(self.row.arguments, dict(self.given))

    @property
    def outputs(self) -> tuple[str, ...]:
        return _names(self.row.outputs, dict(self.given))

    @property
    def inferred(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name in self.row.inferred)

    @property
    def parameters(self) -> tuple[str, ...]:
        learned = (*super().parameters, *self.row.learned)
        return tuple(name for name in self.arguments if name in learned)

    @property
    def whole_numbers(self) -> tuple[str, ...]:
        return self.row.whole

    @property
    def single(self) -> tuple[bool, ...]:
        return tuple(name in self.whole_numbers for name in (*self.arguments, *self.outputs))

    @property
    def draws(self) -> tuple[Draw, ...]:
        return (Draw(None, False),) * self.row.keys(dict(self.given))

    @property
    def is_view(self) -> bool:  # type: ignore[override]
        """Whether it computes nothing."""
        return self.row.view

    @property
    def is_copy(self) -> bool:  # type: ignore[override]
        """Whether its output is its first input in another shape."""
        return self.row.copy

    @property
    def casts(self) -> bool:  # type: ignore[override]
        """Whether its outputs have a type of their own."""
        return self.row.casts

    @property
    def outside(self) -> str:
        """Why regions leave it to MXNet; empty if they do not."""
        return self.row.outside(dict(self.given))

    @classmethod
    def read(cls, attributes: Attributes) -> Inner:
        function = attributes.choice("function", INNER)
        given = tuple((name, reader(attributes, name)) for name, reader in INNER[function].readers.items())
        attributes.ignore(*BACKENDS)
        return cls(function, tuple((name, value) for name, value in given if value is not None))

    @property
    def open_sizes(self) -> int:  # type: ignore[override]
        shape = dict(self.given).get("shape", ()) if not self.arguments else ()
        return sum(size < 1 for size in shape)

    @property
    def stated_dtype(self) -> str:
        return str(dict(self.given).get("dtype", "float32"))

    def of_size(self, size: int) -> Inner:
        shape = dict(self.given).get("shape", ())
        return (
            self.as_constant(tuple(own if own > 0 else size for own in shape), self.dtype) if self.open_sizes else self
        )

    def as_constant(self, shape: Shape, dtype: str) -> Inner:
        return replace(self, given=tuple({**dict(self.given), "shape": shape}.items()), dtype=dtype)

    def infer(self, shapes: Sequence[Shape | None]) -> Shapes | None:
        try:
            if self.row.shapes is not None:
                found = self.row.shapes(dict(self.given), shapes)
                if found is None:
                    return None
                self.agree(shapes, found[0])
                return found[0], found[1], []
            known = [shape for shape in shapes if shape is not None]
            if len(known) < len(shapes) or self.open_sizes:
                return None
            outputs = self.built(known)
        except ProblemError:
            raise
        except FAULTS:
            raise self.error("inputs", f"of shapes {list(shapes)}", f"some that fit {self.function}") from None
        if not known and math.prod(outputs[0]) > MOST_CONSTANT:
            raise self.error("shape", outputs[0], f"at most {MOST_CONSTANT} elements of a constant")
        return known, outputs, []

    def build(self, build: Build, *values: Tensor) -> Any:
        given = dict(self.given)
        if not self.arguments:
            given["dtype"] = self.dtype
        return self.row.build(build, *values, **given)
