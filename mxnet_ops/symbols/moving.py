"""MXNet's operators that clgraft has no operator of its own for: most of them compute nothing, but move and shape.

Each reads its attributes once and returns a `Moving`, which builds what the operator computes of values of a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn import elementwise
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.operators.matmul import MatMulProblem
from clgraft.mxnet_ops.engine.attributes import Attributes

Shape = tuple[int, ...]
Builds = Callable[[Build, Sequence[Tensor]], "Tensor | Sequence[Tensor]"]
REAL = ("float32", "float16", "float64")
MOST_CONSTANT = 2**26  # elements of a constant, which is made on the host
MOST_CONSTANTS = 1000  # of a graph
COMPARED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_or_equal",
    "lesser": "less",
    "lesser_equal": "less_or_equal",
}
ROUNDED = {"floor": "floor", "ceil": "ceil", "rint": "rint", "round": "round", "trunc": "trunc", "fix": "trunc"}


@dataclass(frozen=True)
class Moving:
    """An operator of MXNet's.

    Attributes
    ----------
    builds : callable
        Gets a builder and the inputs; returns the output, or several.
    outputs : tuple of str
        How MXNet names them after the node's name.
    learned : tuple of int
        Places of inputs that are parameters.
    """

    builds: Builds
    outputs: tuple[str, ...] = ("output",)
    learned: tuple[int, ...] = ()

    def build(self, build: Build, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs."""
        found = self.builds(build, values)
        return (found,) if isinstance(found, Tensor) else found


Reads = Callable[[Attributes], Moving]
MOVING: dict[str, Reads] = {}


def moving(
    *names: str, learned: tuple[int, ...] = ()
) -> Callable[[Callable[[Attributes], Builds]], Callable[[Attributes], Builds]]:
    """Return a decorator that adds an operator: a function that reads attributes and returns what builds it."""

    def add(function: Callable[[Attributes], Builds]) -> Callable[[Attributes], Builds]:
        def read(attributes: Attributes) -> Moving:
            found = Moving(function(attributes), learned=learned)
            attributes.finish()
            return found

        for name in names:
            MOVING[name] = read
        return function

    return add


# shapes


@moving("identity", "_copy", "BlockGrad", "stop_gradient", "make_loss", "MakeLoss", "_identity_with_attr_like_rhs")
def _same(attributes: Attributes) -> Builds:
    attributes.ignore("grad_scale", "valid_thresh", "normalization")
    return lambda build, values: values[0]


@moving("Flatten", "flatten")
def _flattened(attributes: Attributes) -> Builds:
    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        return build.reshape(x, (x.shape[0], math.prod(x.shape[1:])))

    return builds


@moving("Reshape", "reshape")
def _reshaped(attributes: Attributes) -> Builds:
    wanted = attributes.sizes("shape", (), low=-4)
    reverse = attributes.flag("reverse", False)
    target = attributes.sizes("target_shape", ())  # before MXNet 0.9: 0 is what is left
    keep = attributes.flag("keep_highest", False)

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        if wanted:
            shape = reshape(x.shape, wanted, reverse)
        else:
            sizes = (x.shape[0], *target[1:]) if keep else target
            shape = reshape(x.shape, tuple(size or -1 for size in sizes), False)
        if math.prod(shape) != x.size or any(size < 0 for size in shape):
            raise attributes.error("shape", wanted or target, f"one for data of shape {x.shape}")
        return build.reshape(x, shape)

    return builds


def reshape(data: Shape, wanted: Shape, reverse: bool) -> Shape:
    """Return the shape that MXNet's Reshape makes: sizes, 0 a size of the data, -1 what is left, -2 all sizes that are
    left, -3 two sizes as one, -4 one size as two.

    Raises
    ------
    ProblemError
        If they do not fit.
    """
    if reverse:  # -4 and the two numbers after it are read in the same direction
        return reshape(data[::-1], _turned(wanted), False)[::-1]
    found: list[int] = []
    left, open_, codes = list(data), -1, iter(wanted)
    for code in codes:
        if code > 0:
            found.append(code)
            del left[:1]
        elif code == -1:
            if open_ >= 0:
                raise ProblemError(f"[Reshape] got shape {wanted}, expected at most one -1")
            open_ = len(found)
            found.append(1)
            del left[:1]
        elif code == -2:
            found += left
            left.clear()
        else:
            count = 2 if code == -3 else 1
            if len(left) < count:
                raise ProblemError(f"[Reshape] got shape {wanted}, expected fewer sizes for data of shape {data}")
            taken = math.prod(left[:count])
            del left[:count]
            if code != -4:
                found.append(taken)
                continue
            parts = [next(codes, 0), next(codes, 0)]
            for place in (0, 1):
                if parts[place] == -1 and parts[1 - place] > 0:
                    parts[place] = taken // parts[1 - place]
            if math.prod(parts) != taken or min(parts) < 0:
                raise ProblemError(f"[Reshape] got shape {wanted}, expected -4 with two factors of {taken}")
            found += parts
    if open_ >= 0:
        found[open_] = math.prod(data) // max(1, math.prod(found))
    return tuple(found)


def _turned(wanted: Shape) -> Shape:
    """Return codes of Reshape from the last to the first; -4 stays in front of its two numbers."""
    groups: list[tuple[int, ...]] = []
    codes = iter(wanted)
    for code in codes:
        groups.append((code, *reversed([next(codes, 0), next(codes, 0)])) if code == -4 else (code,))
    return tuple(number for group in reversed(groups) for number in group)


@moving("expand_dims")
def _expanded(attributes: Attributes) -> Builds:
    axis = attributes.integer("axis")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        place = _axis(attributes, axis, x.ndim + 1)
        return build.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))

    return builds


@moving("squeeze")
def _squeezed(attributes: Attributes) -> Builds:
    text = attributes.text("axis", "None")
    axes = None if text == "None" else Attributes("squeeze", {"axis": text}).sizes("axis", (), low=-32)

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        if axes is None:
            gone = {axis for axis, size in enumerate(x.shape) if size == 1}
        else:
            gone = {_axis(attributes, axis, x.ndim) for axis in axes}
        if any(x.shape[axis] != 1 for axis in gone):
            raise attributes.error("axis", axes, f"axes of size 1 of data of shape {x.shape}")
        return build.reshape(x, tuple(size for axis, size in enumerate(x.shape) if axis not in gone) or (1,))

    return builds


@moving("reshape_like")
def _reshaped_like(attributes: Attributes) -> Builds:
    given = [attributes.text(name, "") for name in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")]
    if any(given):
        raise attributes.error("lhs_begin ... rhs_end", given, "none of them")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        x, like = values
        if x.size != like.size:
            raise attributes.error("rhs", f"of shape {like.shape}", f"as many elements as {x.shape}")
        return build.reshape(x, like.shape)

    return builds


@moving("slice_like")
def _cut_like(attributes: Attributes) -> Builds:
    axes = attributes.sizes("axes", (), low=-32)

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        x, like = values
        cut = {_axis(attributes, axis, x.ndim) for axis in axes} or set(range(x.ndim))
        if any(axis >= like.ndim for axis in cut):
            raise attributes.error("shape_like", f"of shape {like.shape}", f"axes {sorted(cut)}")
        size = tuple(like.shape[axis] if axis in cut else own for axis, own in enumerate(x.shape))
        if any(a > b for a, b in zip(size, x.shape)):
            raise attributes.error("shape_like", f"of shape {like.shape}", f"sizes of at most {x.shape}")
        return moves.cut(build, x, size, (0,) * x.ndim)

    return builds


@moving("broadcast_to")
def _broadcast(attributes: Attributes) -> Builds:
    wanted = attributes.sizes("shape", ())

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        if len(wanted) != x.ndim:
            raise attributes.error("shape", wanted, f"{x.ndim} sizes, for data of shape {x.shape}")
        return _repeated(attributes, build, x, tuple(size or own for size, own in zip(wanted, x.shape)))

    return builds


@moving("broadcast_axis", "broadcast_axes")
def _broadcast_axes(attributes: Attributes) -> Builds:
    axes, sizes = attributes.sizes("axis", (), low=-32), attributes.sizes("size", ())

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        if len(axes) != len(sizes):
            raise attributes.error("size", sizes, f"{len(axes)} numbers, as many as axis {axes}")
        shape = list(x.shape)
        for axis, size in zip(axes, sizes):
            shape[_axis(attributes, axis, x.ndim)] = size
        return _repeated(attributes, build, x, tuple(shape))

    return builds


@moving("broadcast_like")
def _broadcast_like(attributes: Attributes) -> Builds:
    pairs = [attributes.sizes(name, (), low=-32) for name in ("lhs_axes", "rhs_axes")]

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        x, like = values
        shape = list(x.shape) if pairs[0] else list(like.shape)
        for own, other in zip(*pairs):
            shape[_axis(attributes, own, x.ndim)] = like.shape[_axis(attributes, other, like.ndim)]
        return _repeated(attributes, build, x, tuple(shape))

    return builds


def _repeated(attributes: Attributes, build: Build, x: Tensor, shape: Shape) -> Tensor:
    """Return a value with axes of size 1 repeated."""
    if len(shape) != x.ndim or any(own not in (1, size) for own, size in zip(x.shape, shape)):
        raise attributes.error("shape", shape, f"one that data of shape {x.shape} broadcast to")
    times = tuple(size if own == 1 else 1 for own, size in zip(x.shape, shape))
    if all(count == 1 for count in times):
        return x
    return moves.repeated(build, x, times, whole=True)


@moving("reverse", "flip")
def _reversed(attributes: Attributes) -> Builds:
    axes = attributes.sizes("axis", low=-32)

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        (x,) = values
        turned = {_axis(attributes, axis, x.ndim) for axis in axes}
        begin = tuple(size - 1 if axis in turned else 0 for axis, size in enumerate(x.shape))
        step = tuple(-1 if axis in turned else 1 for axis in range(x.ndim))
        return moves.cut(build, x, x.shape, begin, step)

    return builds


@moving("Cast", "cast", "amp_cast")
def _cast(attributes: Attributes) -> Builds:
    dtype = attributes.choice("dtype", REAL)
    return lambda build, values: build.cast(values[0], dtype)


# constants


@moving("zeros_like")
def _zeros_like(attributes: Attributes) -> Builds:
    return lambda build, values: _filled(attributes, build, values[0].shape, 0.0, values[0].dtype)


@moving("ones_like")
def _ones_like(attributes: Attributes) -> Builds:
    return lambda build, values: _filled(attributes, build, values[0].shape, 1.0, values[0].dtype)


def _of_one_number(value: float | None) -> Callable[[Attributes], Builds]:
    def read(attributes: Attributes) -> Builds:
        shape = attributes.sizes("shape", (1,))
        number = attributes.number("value") if value is None else value
        dtype = attributes.choice("dtype", REAL, "float32")
        attributes.ignore("ctx")
        if not all(shape):
            raise attributes.error("shape", shape, "all sizes: they do not follow from operators after it here")
        return lambda build, values: _filled(attributes, build, shape, number, dtype)

    return read


moving("_zeros", "_zeros_without_dtype")(_of_one_number(0.0))
moving("_ones")(_of_one_number(1.0))
moving("_full")(_of_one_number(None))


@moving("_arange")
def _range(attributes: Attributes) -> Builds:
    start, step = attributes.number("start", 0.0), attributes.number("step", 1.0)
    stop = attributes.text("stop", "")
    repeat = attributes.integer("repeat", 1, low=1)
    dtype = attributes.choice("dtype", REAL, "float32")
    attributes.ignore("ctx", "infer_range")
    first, last = (0.0, start) if not stop else (start, Attributes("_arange", {"stop": stop}).number("stop"))
    if not step or not all(math.isfinite(number) for number in (first, last, step)):
        raise attributes.error("step", step, "a finite number other than 0, and finite bounds")
    count = max(0, math.ceil((last - first) / step)) * repeat
    if not count or count > MOST_CONSTANT:
        raise attributes.error("stop", last, f"1 to {MOST_CONSTANT} numbers from {first} on, not {count}")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        array = np.repeat(first + step * np.arange(count // repeat), repeat).astype(dtype)
        _expect_few(attributes, build)
        name = f"range{len(build.constants)}"
        build.constants[name] = array
        return build.input(name, array.shape, dtype)

    return builds


def _filled(attributes: Attributes, build: Build, shape: Shape, value: float, dtype: str) -> Tensor:
    """Return a constant of one number."""
    if math.prod(shape) > MOST_CONSTANT:
        raise attributes.error("shape", shape, f"at most {MOST_CONSTANT} elements")
    _expect_few(attributes, build)
    return build.filled(shape, value, dtype)


def _expect_few(attributes: Attributes, build: Build) -> None:
    if len(build.constants) > MOST_CONSTANTS:
        raise attributes.error("constants", len(build.constants), f"at most {MOST_CONSTANTS} in a symbol")


# arithmetic


def _compared(comparison: str) -> Callable[[Attributes], Builds]:
    return lambda attributes: lambda build, values: elementwise.compared(build, values[0], comparison, values[1])


def _compared_with_number(comparison: str) -> Callable[[Attributes], Builds]:
    def read(attributes: Attributes) -> Builds:
        number = attributes.number("scalar", 1.0)
        attributes.ignore("is_int")
        return lambda build, values: elementwise.compared(build, values[0], comparison, number)

    return read


def _rounded(function: str) -> Callable[[Attributes], Builds]:
    return lambda attributes: lambda build, values: elementwise.rounded(build, values[0], function)


for _name, _comparison in COMPARED.items():
    moving(f"_{_name}", f"broadcast_{_name}")(_compared(_comparison))
    moving(f"_{_name}_scalar")(_compared_with_number(_comparison))
for _name, _function in ROUNDED.items():
    moving(_name)(_rounded(_function))


@moving("where")
def _where(attributes: Attributes) -> Builds:
    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        condition, x, y = values
        if condition.shape != x.shape:  # one for each place of the first axis
            if condition.shape != x.shape[:1]:
                raise attributes.error("condition", f"of shape {condition.shape}", f"{x.shape} or {x.shape[:1]}")
            condition = build.reshape(condition, (*condition.shape, *(1 for _ in x.shape[1:])))
        return elementwise.selected(build, build.cast(condition, x.dtype), x, build.cast(y, x.dtype))

    return builds


@moving("dot")
def _product(attributes: Attributes) -> Builds:
    turned = [attributes.flag(name, False) for name in ("transpose_a", "transpose_b")]
    attributes.ignore("forward_stype")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        a, b = values
        if a.ndim != 2 or b.ndim != 2:
            raise attributes.error("inputs", f"of shapes {a.shape} and {b.shape}", "matrices")
        wide = [build.reshape(value, (1, *value.shape)) for value in values]
        y = _products(attributes, build, wide[0], wide[1], turned)
        return build.reshape(y, y.shape[1:])

    return builds


@moving("batch_dot")
def _batch_product(attributes: Attributes) -> Builds:
    turned = [attributes.flag(name, False) for name in ("transpose_a", "transpose_b")]
    attributes.ignore("forward_stype")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        a, b = values
        if a.ndim < 3 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
            raise attributes.error("inputs", f"of shapes {a.shape} and {b.shape}", "matrices of one batch")
        count = math.prod(a.shape[:-2])
        wide = [build.reshape(value, (count, *value.shape[-2:])) for value in values]
        y = _products(attributes, build, wide[0], wide[1], turned)
        return build.reshape(y, (*a.shape[:-2], *y.shape[1:]))

    return builds


def _products(attributes: Attributes, build: Build, a: Tensor, b: Tensor, turned: Sequence[bool]) -> Tensor:
    """Return the products of a batch of matrices, of which the core has at most one transposed."""
    turned = list(turned)
    if all(turned):
        a, turned[0] = moves.transposed(build, a, (0, 2, 1)), False
    rows, inner = a.shape[:0:-1] if turned[0] else a.shape[1:]
    columns, other = b.shape[1:] if turned[1] else b.shape[:0:-1]
    if inner != other:
        raise attributes.error("inputs", f"of shapes {a.shape[1:]} and {b.shape[1:]}", "matrices that fit")
    problem = MatMulProblem(a.shape[0], rows, inner, columns, turned[0], turned[1], False, a.dtype)
    (y,) = build.add(problem, a, build.cast(b, a.dtype))
    return build.reshape(y, (a.shape[0], rows, columns))


@moving("Embedding", learned=(1,))
def _embedded(attributes: Attributes) -> Builds:
    rows, width = attributes.integer("input_dim", low=1), attributes.integer("output_dim", low=1)
    attributes.ignore("dtype", "sparse_grad")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        index, weight = values
        if weight.shape != (rows, width):
            raise attributes.error("weight", f"of shape {weight.shape}", f"shape {(rows, width)}")
        return moves.taken(build, weight, index, 0)

    return builds


@moving("take")
def _take(attributes: Attributes) -> Builds:
    axis = attributes.integer("axis", 0)
    attributes.choice("mode", ("clip",), "clip")

    def builds(build: Build, values: Sequence[Tensor]) -> Tensor:
        x, index = values
        return moves.taken(build, x, index, _axis(attributes, axis, x.ndim))

    return builds


def _axis(attributes: Attributes, axis: int, ndim: int) -> int:
    """Count a negative axis from the end."""
    if not -ndim <= axis < ndim:
        raise attributes.error("axis", axis, f"an axis of {ndim}")
    return axis % ndim


def moving_operators() -> tuple[str, ...]:
    """Return the names of the operators."""
    return tuple(sorted(MOVING))


__all__ = ["MOVING", "Moving", "moving_operators", "reshape"]
