"""Attention (Vaswani et al. 2017), softmax(scale q k^T + mask) v, as formulas between products of matrices.

Rows whose keys are all masked are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clgraft.core.errors import ProblemError
from clgraft.core.nn.builder import Build, Tensor
from clgraft.core.nn.formulas import assigned
from clgraft.core.nn.products import Matrix, batch_product, product
from clgraft.core.nn.reductions import FOLDS, kept_shape
from clgraft.core.nn.shapes import split, transposed
from clgraft.core.operators.pointwise import PointwiseProblem, Reduction
from clgraft.core.problem import SMALL

# the row's result, of the product of exponentials and v, and of their sum
OUTPUT = "y0 = x1 > 0 ? x0 / x1 : 0;"
# the logarithm of the sum of exponentials, of the row's maximum and of their sum
LOG_OF_SUM = "y0 = x0 + log(x1);"
# the gradient of q k^T, of the weights, of their gradient, and of the sum of dy times the result in each row
SCORES_GRADIENT = "y0 = factor * x0 * (x1 - x2);"


class Logits(NamedTuple):
    """What the weights of v follow from: scale q k^T plus masks.

    Attributes
    ----------
    q : Matrix
        Queries (..., queries, depth).
    kt : Matrix
        Transposed keys (..., depth, keys).
    scale : float or None
        By default 1 / sqrt(depth).
    mask : Tensor or None
        Broadcasts to (..., queries, keys).
    causal : bool
        Whether each query sees no later key.
    """

    q: Matrix
    kt: Matrix
    scale: float | None = None
    mask: Tensor | None = None
    causal: bool = False

    def parts(self, build: Build) -> tuple[list[Tensor], dict[str, float]]:
        """Return q k^T and masks, and the scalar that multiplies the first."""
        scores, dtype = product(build, self.q, self.kt), self.q.stored.dtype
        masks = [] if self.mask is None else [self.mask]
        if self.causal:
            masks.append(build.constant(np.triu(np.full(scores.shape[2:], -math.inf, dtype), 1)))
        depth = self.q.stored.shape[-2 if self.q.transposed else -1]
        return [scores, *masks], {"factor": 1 / math.sqrt(depth) if self.scale is None else self.scale}


def attention(build: Build, logits: Logits, v: Matrix) -> tuple[Tensor, Tensor]:
    """Return softmax(logits) v, and the logarithm of the sum of each row's exponentials (..., queries)."""
    parts, factor = logits.parts(build)
    dtype, masks = parts[0].dtype, len(parts) - 1
    scores = _pointwise(build, f"y0 = factor * x0{_masks(masks)};", parts, factor)
    rows = (*scores.shape[:-1], 1)
    top = _folded(build, "max", scores)
    exponentials = PointwiseProblem(
        (scores.shape, rows),
        "y0 = isinf(x1) ? 0 : exp(x0 - x1); y1 = y0;",
        (None, Reduction("sum", shape=rows)),
        dtype=dtype,
    )
    weights, total = build.add(exponentials, build.cast(scores, dtype), build.cast(top, dtype))
    y = _pointwise(build, OUTPUT, [product(build, Matrix(weights), v), total])
    return y, build.reshape(_pointwise(build, LOG_OF_SUM, [top, total]), rows[:-1])


def of_heads(build: Build, x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """Return the parts of projections, each as (batch * heads, steps, size).

    Parameters
    ----------
    x : Tensor
        (steps, batch, heads * parts * size): each head's parts, such as query, key and value, follow each other.
    heads, parts : int

    Raises
    ------
    ProblemError
        If x has other than 3 axes, or the last one is no multiple of heads and parts.
    """
    if x.ndim != 3 or x.shape[2] % (heads * parts):
        expected = f"(steps, batch, a multiple of {heads * parts})"
        raise ProblemError(f"[attention] got {parts} parts of {heads} heads of shape {x.shape}, expected {expected}")
    steps, batch, columns = x.shape
    size = columns // heads // parts
    found = (build.reshape(x, (steps, batch * heads, parts, size)),)
    if parts > 1:
        found = split(build, found[0], 2, (1,) * parts)
    return tuple(transposed(build, build.reshape(one, (steps, batch * heads, size)), (1, 0, 2)) for one in found)


def divided_by_root(build: Build, x: Tensor) -> Tensor:
    """Return x divided by the square root of the size of its last axis."""
    return _pointwise(build, "y0 = factor * x0;", [x], {"factor": 1 / math.sqrt(x.shape[-1])})


def scaled_scores(build: Build, q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T / sqrt(size) of queries and keys (..., steps, size), as (..., queries, keys)."""
    return batch_product(build, divided_by_root(build, q), k, transposed_b=True)


def weighed_values(build: Build, weights: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return the products of weights (batch * heads, queries, keys) and values as (queries, batch, heads * size)."""
    y = batch_product(build, weights, v)
    count, steps, size = y.shape
    return build.reshape(transposed(build, y, (1, 0, 2)), (steps, count // heads, heads * size))


def attention_gradients(
    build: Build, dy: Tensor, logits: Logits, k: Matrix, vt: Matrix, y: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; the weights are computed again.

    Parameters
    ----------
    logits : Logits
    k, vt : Matrix
        Keys (..., keys, depth), and transposed values.
    y, sums : Tensor
        What `attention` returned.
    """
    parts, factor = logits.parts(build)
    masks = len(parts) - 1
    last = f"x{masks + 1}"
    text = f"y0 = isinf({last}) ? 0 : exp(factor * x0{_masks(masks)} - {last});"
    weights = _pointwise(build, text, [*parts, build.reshape(sums, (*sums.shape, 1))], factor)
    mean = _folded(build, "dot", dy, y)
    dweights = product(build, Matrix(dy), vt)
    dscores = Matrix(_pointwise(build, SCORES_GRADIENT, [weights, dweights, mean], factor))
    dq, dk = product(build, dscores, k), product(build, dscores.t, logits.q)
    return dq, dk, product(build, Matrix(weights).t, Matrix(dy))


def _masks(count: int) -> str:
    return "".join(f" + x{i + 1}" for i in range(count))


def _pointwise(build: Build, text: str, values: Sequence[Tensor], scalars: dict[str, float] | None = None) -> Tensor:
    """Return an expression in the widest type of its values."""
    return build.pointwise(text, _alike(build, values), scalars)[0]


def _folded(build: Build, fold: str, *values: Tensor) -> Tensor:
    """Return one of `FOLDS` over the last axis, which stays as 1."""
    shape = values[0].shape
    reduction = Reduction(FOLDS[fold].operation, shape=kept_shape(shape, {len(shape) - 1}))
    return build.pointwise(assigned("y0", FOLDS[fold].element), _alike(build, values), reduce=(reduction,))[0]


def _alike(build: Build, values: Sequence[Tensor]) -> list[Tensor]:
    """Return values in the widest of their types."""
    dtype = next((value.dtype for value in values if value.dtype not in SMALL), values[0].dtype)
    return [build.cast(value, dtype) for value in values]
