"""Rows of `INNER`: comparisons, choices, rounding, types, products of matrices, and elements by their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from clgraft.core.nn import elementwise, ordering, products
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.engine.operator import Shape
from clgraft.mxnet_ops.operators.inner import (
    INNER,
    Given,
    InnerRow,
    expect,
    flag,
    ignored,
    integer,
    number,
    place,
    real,
    row,
    word,
)

COMPARISONS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_or_equal",
    "lesser": "less",
    "lesser_equal": "less_or_equal",
}
WHOLE = ("int32", "int64")  # types of whole numbers that sessions know
ROUNDED = {"floor": "floor", "ceil": "ceil", "rint": "rint", "round": "round", "trunc": "trunc", "fix": "trunc"}


def _compared_with_number(comparison: str) -> InnerRow:
    def build(build: Build, x: Tensor, scalar: float, **_: Any) -> Tensor:
        return elementwise.compared(build, x, comparison, scalar)

    return row("data", build, scalar=number(1.0), is_int=flag)


def _compared(comparison: str) -> InnerRow:
    return row("lhs rhs", lambda build, a, b: elementwise.compared(build, a, comparison, b))


def _rounded(function: str) -> InnerRow:
    return row("data", lambda build, x: elementwise.rounded(build, x, function))


def _where(build: Build, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if condition.ndim == 1 and x.ndim > 1:  # one for each place of the first axis
        expect(condition.size == x.shape[0], f"condition of shape {condition.shape}", f"{x.shape} or {x.shape[:1]}")
        condition = build.reshape(condition, (*condition.shape, *(1,) * (x.ndim - 1)))
    else:
        expect(condition.shape == x.shape, f"condition of shape {condition.shape}", f"{x.shape} or {x.shape[:1]}")
    return elementwise.selected(build, condition, x, y)


def _cast(build: Build, x: Tensor, dtype: str) -> Tensor:
    if dtype in WHOLE:  # in sessions whole numbers are real ones
        return elementwise.rounded(build, build.cast(x, "float32") if x.dtype == "float16" else x, "trunc")
    return build.cast(x, dtype) if x.dtype != dtype else moves.copied(build, x, x.shape)


def _remainder(build: Build, a: Tensor, b: Tensor) -> Tensor:
    return elementwise.constant_binary(build, "remainder", a, b)


def _remainder_of_number(build: Build, x: Tensor, scalar: float, **_: Any) -> Tensor:
    return _remainder(build, x, build.filled((1,) * max(1, x.ndim), scalar, x.dtype))


def _remainders_outside(given: Given) -> str:
    return "it computes with whole numbers as a rule"


def _same_types(build: Build, *values: Tensor, **_: Any) -> tuple[Tensor, ...]:
    return tuple(moves.copied(build, value, value.shape) for value in values)


def _counted(name: str) -> Callable[[Given], tuple[str, ...]]:
    return lambda given: tuple(f"{name}{i}" for i in range(given["num_outputs"]))


def _batch_dot(build: Build, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return products.batch_product(build, a, b, transposed_a=transpose_a, transposed_b=transpose_b)


def _dot(build: Build, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    expect(a.ndim == b.ndim == 2, f"inputs of shapes {a.shape} and {b.shape}", "matrices")
    a, b = (build.reshape(value, (1, *value.shape)) for value in (a, b))
    y = _batch_dot(build, a, b, transpose_a, transpose_b)
    return build.reshape(y, y.shape[1:])


def _taken(build: Build, x: Tensor, index: Tensor, axis: int, mode: str) -> Tensor:
    return moves.taken(build, x, index, place(axis, x.ndim))


def _picked(build: Build, x: Tensor, index: Tensor, axis: int | None = None, *, keepdims: bool, mode: str) -> Tensor:
    whole = axis is None
    if whole:
        x = build.reshape(x, (x.size,))
    at = 0 if axis is None else place(axis, x.ndim)
    without = (*x.shape[:at], *x.shape[at + 1 :])
    count = math.prod(without)
    expect(index.size == count, f"index of shape {index.shape}", f"{count} elements for data of shape {x.shape}")
    return moves.picked(build, x, index, at, wraps=mode == "wrap", keeps=keepdims)


def _embedded(build: Build, index: Tensor, weight: Tensor, **_: Any) -> Tensor:
    return moves.taken(build, weight, index, 0)


def _shapes_of_embedding(given: Given, shapes: Sequence[Shape | None]) -> tuple[list[Shape], list[Shape]] | None:
    if shapes[0] is None:
        return None
    return [shapes[0], (given["input_dim"], given["output_dim"])], [(*shapes[0], given["output_dim"])]


RETURNED = ("indices", "value", "both", "mask")


def _axis_or_all(attributes: Attributes, name: str) -> int | None:
    """Read an axis, the last one by default; ``None``, where it is written, means the elements of all axes."""
    written = attributes.is_none(name)
    axis = attributes.integer(name, -1)
    return None if written else axis


def _first(
    build: Build, x: Tensor, k: int, ret_typ: str, is_ascend: bool, axis: int | None = None, **_: Any
) -> Tensor | tuple[Tensor, ...]:
    flat = x if axis is not None else build.reshape(x, (x.size,))
    at = place(axis, x.ndim) if axis is not None else 0
    expect(k <= flat.shape[at], f"k {k}", f"at most {flat.shape[at]}")
    values, places = ordering.first_elements(build, flat, at, k if k > 0 else flat.shape[at], smallest=is_ascend)
    if ret_typ == "mask":
        return build.reshape(ordering.marked(build, flat, places, at), x.shape)
    if ret_typ == "value":
        return values
    numbers = ordering.as_numbers(build, places, x.dtype)
    return numbers if ret_typ == "indices" else (values, numbers)


def _first_outputs(given: Given) -> tuple[str, ...]:
    return {"both": ("output0", "output1"), "value": ("output0",)}.get(given["ret_typ"], ("output",))


def _order(build: Build, x: Tensor, axis: int | None, is_ascend: bool, **_: Any) -> Tensor:
    found = _first(build, x, 0, "indices", is_ascend, axis)
    assert isinstance(found, Tensor)
    return found


def _gathered(build: Build, x: Tensor, index: Tensor) -> Tensor:
    expect(index.ndim > 0 and index.shape[0] <= x.ndim, f"indices of shape {index.shape}", f"{x.ndim} rows at most")
    return ordering.elements_at(build, x, index)


def _flat_repeated(build: Build, x: Tensor, repeats: int, **_: Any) -> Tensor:
    return moves.repeated(build, build.reshape(x, (x.size,)), (repeats,), whole=False)


def _places_outside(given: Given) -> str:
    return "its places have a type of their own" if given["ret_typ"] in ("indices", "both") else ""


INNER.update(
    {
        "where": row("condition x y", _where),
        **{f"_{name}_scalar": _compared_with_number(comparison) for name, comparison in COMPARISONS.items()},
        **{f"{kind}{name}": _compared(c) for name, c in COMPARISONS.items() for kind in ("_", "broadcast_")},
        **{name: _rounded(function) for name, function in ROUNDED.items()},
        "Cast": InnerRow(
            ("data",),
            _cast,
            {"dtype": word("float32", "float16", "float64", *WHOLE)},
            casts=True,
            outside=lambda given: "its numbers are whole ones" if given["dtype"] in WHOLE else "",
        ),
        **dict.fromkeys(("_mod", "broadcast_mod"), InnerRow(("lhs", "rhs"), _remainder, outside=_remainders_outside)),
        "_mod_scalar": InnerRow(
            ("data",), _remainder_of_number, {"scalar": number(1.0), "is_int": flag}, outside=_remainders_outside
        ),
        "amp_cast": InnerRow(("data",), _cast, {"dtype": real}, casts=True),
        "amp_multicast": InnerRow(
            _counted("data_"),
            _same_types,
            {"num_outputs": integer(low=1), "cast_narrow": word("False")},
            casts=True,
            outputs=_counted("output"),
        ),
        "dot": row("lhs rhs", _dot, transpose_a=flag, transpose_b=flag, forward_stype=ignored),
        "batch_dot": row("lhs rhs", _batch_dot, transpose_a=flag, transpose_b=flag, forward_stype=ignored),
        "argsort": InnerRow(
            ("data",),
            _order,
            {
                "axis": _axis_or_all,
                "is_ascend": lambda attributes, name: attributes.flag(name, True),
                "dtype": word("float32", "float16", "float64", "int32", "int64", "uint8"),
            },
            outside=lambda given: "its places have a type of their own",
        ),
        "gather_nd": InnerRow(("data", "indices"), _gathered, outside=lambda given: "it reads by places"),
        "repeat": InnerRow(
            ("data",),
            _flat_repeated,
            {"repeats": integer(low=1), "axis": word("None")},
            outside=lambda given: "it flattens its input",
        ),
        "pick": row("data index", _picked, axis=_axis_or_all, keepdims=flag, mode=word("clip", "wrap")),
        "take": row("a indices", _taken, axis=integer(0), mode=word("clip")),
        "Embedding": InnerRow(
            ("data", "weight"),
            _embedded,
            {"input_dim": integer(low=1), "output_dim": integer(low=1), "dtype": real, "sparse_grad": word("False")},
            inferred=("weight",),
            shapes=_shapes_of_embedding,
        ),
        "topk": InnerRow(
            ("data",),
            _first,
            {
                "axis": _axis_or_all,
                "k": integer(1, 0),
                "ret_typ": word(*RETURNED),
                "is_ascend": flag,
                "dtype": word("float32", "float16", "float64", "int32", "int64", "uint8"),
            },
            outputs=_first_outputs,
            outside=_places_outside,
        ),
    }
)
