"""Attention (Vaswani et al. 2017), softmax(scale q k^T + mask) v, as formulas between products of matrices.

Rows whose keys are all masked are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clgraft.core.operators.pointwise import PointwiseProblem, Reduction

# the row's result, of the product of `exponentials` and v, and of their sum
OUTPUT = "y0 = x1 > 0 ? x0 / x1 : 0;"
# the logarithm of the sum of exponentials, of the row's maximum and of their sum
LOG_OF_SUM = "y0 = x0 + log(x1);"
# the gradient of q k^T, of the weights, of their gradient, and of the sum of dy times the result in each row
SCORES_GRADIENT = "y0 = factor * x0 * (x1 - x2);"


def usual_scale(depth: int) -> float:
    """Return the scale for keys of a length."""
    return 1 / math.sqrt(depth)


def later_keys(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return the mask (queries, keys) that hides the keys behind each query."""
    return np.triu(np.full(tuple(shape), -math.inf, dtype), 1)


def logits(masks: int) -> str:
    """Return factor times x0 = q k^T plus masks."""
    return f"y0 = factor * x0{_masks(masks)};"


def exponentials(shape: Sequence[int], dtype: str) -> PointwiseProblem:
    """Return the problem that makes exp(logits - maximum) and its sums of x0 = logits, and x1 = each row's maximum."""
    rows = (*shape[:-1], 1)
    text = "y0 = isinf(x1) ? 0 : exp(x0 - x1); y1 = y0;"
    return PointwiseProblem((tuple(shape), rows), text, (None, Reduction("sum", shape=rows)), dtype=dtype)


def weights(masks: int) -> str:
    """Return the weights of v again, of q k^T, masks and `LOG_OF_SUM`."""
    last = f"x{masks + 1}"
    return f"y0 = isinf({last}) ? 0 : exp(factor * x0{_masks(masks)} - {last});"


def _masks(count: int) -> str:
    return "".join(f" + x{i + 1}" for i in range(count))
