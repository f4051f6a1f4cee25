"""Rows of `INNER`: attention, as GluonNLP's cells have it, and sequences that end at lengths of their own."""

from __future__ import annotations

from typing import Any

from clgraft.core.nn import attention, softmax
from clgraft.core.nn import shapes as moves
from clgraft.core.nn.builder import Build, Tensor
from clgraft.mxnet_ops.engine.attributes import Attributes
from clgraft.mxnet_ops.operators.inner import (
    INNER,
    Given,
    InnerRow,
    expect,
    flag,
    integer,
    number,
    place,
    row,
    without,
)
from clgraft.mxnet_ops.operators.softmax import temperature_of


def _own_scores(build: Build, x: Tensor, heads: int) -> Tensor:
    q, k, _ = attention.of_heads(build, x, heads, 3)
    return attention.scaled_scores(build, q, k)


def _own_values(build: Build, x: Tensor, weights: Tensor, heads: int) -> Tensor:
    return attention.weighed_values(build, weights, attention.of_heads(build, x, heads, 3)[2], heads)


def _scores(build: Build, queries: Tensor, x: Tensor, heads: int) -> Tensor:
    (q,), (k, _) = attention.of_heads(build, queries, heads, 1), attention.of_heads(build, x, heads, 2)
    return attention.scaled_scores(build, q, k)


def _values(build: Build, x: Tensor, weights: Tensor, heads: int) -> Tensor:
    return attention.weighed_values(build, weights, attention.of_heads(build, x, heads, 2)[1], heads)


def _matmul(arguments: str, build: Any) -> InnerRow:
    return InnerRow(tuple(arguments.split()), build, {"heads": integer(low=1)}, real=True)


def _softmax_up_to(build: Build, x: Tensor, length: Tensor, axis: int, temperature: float) -> Tensor:
    return softmax.softmax_up_to(build, x, length, place(axis, x.ndim), temperature=temperature)


def _with_length(attributes: Attributes, name: str) -> None:
    if not attributes.flag(name, False):
        raise attributes.error(name, False, "True: without lengths it is ocl_softmax")


def _masked(build: Build, x: Tensor, *lengths: Tensor, value: float, axis: int, use_sequence_length: bool) -> Tensor:
    if not lengths:
        return moves.copied(build, x, x.shape)
    expect(axis in (0, 1) and x.ndim > 1, f"axis {axis} of data of shape {x.shape}", "0 or 1, of at least 2 axes")
    count = x.shape[1 - axis]
    expect(lengths[0].shape == (count,), f"sequence_length of shape {lengths[0].shape}", f"{(count,)}")
    sizes = (1, count) if axis == 0 else (count, 1)
    return moves.up_to(build, x, build.reshape(lengths[0], (*sizes, *(1,) * (x.ndim - 2))), axis, value)


def _masked_arguments(given: Given) -> tuple[str, ...]:
    return ("data", "sequence_length") if given["use_sequence_length"] else ("data",)


INNER.update(
    {
        "_contrib_interleaved_matmul_selfatt_qk": _matmul("queries_keys_values", _own_scores),
        "_contrib_interleaved_matmul_selfatt_valatt": _matmul("queries_keys_values attention", _own_values),
        "_contrib_interleaved_matmul_encdec_qk": _matmul("queries keys_values", _scores),
        "_contrib_interleaved_matmul_encdec_valatt": _matmul("keys_values attention", _values),
        "_contrib_div_sqrt_dim": row("data", attention.divided_by_root),
        "softmax": InnerRow(
            ("data", "length"),
            _softmax_up_to,
            {
                "axis": integer(-1),
                "temperature": temperature_of,
                "use_length": _with_length,
                "dtype": without("type of its own"),
            },
            real=True,
            whole=("length",),
        ),
        "SequenceMask": InnerRow(
            _masked_arguments,
            _masked,
            {"use_sequence_length": flag, "value": number(0.0), "axis": integer(0)},
            whole=("sequence_length",),
        ),
    }
)
