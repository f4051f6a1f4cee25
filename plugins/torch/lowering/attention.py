"""Attention (Vaswani et al. 2017) as products of matrices and a softmax between them."""

from __future__ import annotations

import torch

from clgraft.core.nn import attention as nn
from clgraft.core.nn.reductions import FOLDS
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.matrices import product
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

aten = torch.ops.aten
LAST_TWO = (0, 1, 3, 2)


def _logits(
    build: Builder, q: Operand, k: Operand, dropout: float, causal: bool, mask: Operand | None, scale: float | None
) -> tuple[Operand, list[Operand], float]:
    """Return products of queries and keys, the masks, and the factor."""
    if dropout:
        raise NotLowered(f"[torch] got dropout {dropout} in attention, expected none: it draws random numbers")
    if min(*q.shape, *k.shape) < 1:
        raise NotLowered(f"[torch] got attention of {q.shape} and {k.shape}, expected elements")
    factor = nn.usual_scale(q.shape[-1]) if scale is None else scale
    scores = product(build, q, k.permuted(LAST_TWO))
    masks = [] if mask is None else [mask]
    if causal:
        masks.append(build.constant(nn.later_keys(scores.shape[2:], q.dtype)))
    return scores, masks, factor


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    build: Builder,
    q: Operand,
    k: Operand,
    v: Operand,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
) -> tuple[Operand, Operand]:
    """Return softmax(scale q k^T + mask) v, and the logarithm of the sum of each row's exponentials.

    A row whose keys are all masked is 0.
    """
    scores, masks, factor = _logits(build, q, k, dropout, causal, attn_mask, scale)
    (logits,) = build.pointwise(nn.logits(len(masks)), [scores, *masks], {"factor": factor})
    logits = build.stored(logits)
    top = build.reduced(FOLDS["max"], [logits], [3], True)
    found = build.run(nn.exponentials(logits.shape, q.dtype), {"x0": logits, "x1": top})
    weights, total = found["y0"], found["y1"]
    (y,) = build.pointwise(nn.OUTPUT, [product(build, weights, v), total])
    (sums,) = build.pointwise(nn.LOG_OF_SUM, [top, total])
    return y, build.reshaped(sums, sums.shape[:3])


@lowers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    build: Builder,
    dy: Operand,
    q: Operand,
    k: Operand,
    v: Operand,
    y: Operand,
    sums: Operand,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
) -> tuple[Operand, Operand, Operand]:
    """Return the gradients of q, k and v; the weights are computed again from the sums of exponentials."""
    scores, masks, factor = _logits(build, q, k, dropout, causal, attn_mask, scale)
    rows = build.reshaped(sums, (*sums.shape, 1))
    (weights,) = build.pointwise(nn.weights(len(masks)), [scores, *masks, rows], {"factor": factor})
    mean = build.reduced(FOLDS["dot"], [dy, y], [3], True)
    dweights = product(build, dy, v.permuted(LAST_TWO))
    (dscores,) = build.pointwise(nn.SCORES_GRADIENT, [weights, dweights, mean], {"factor": factor})
    dq = product(build, dscores, k)
    dk = product(build, dscores.permuted(LAST_TWO), q)
    return dq, dk, product(build, weights.permuted(LAST_TWO), dy)
