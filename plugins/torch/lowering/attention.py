"""Attention."""

from __future__ import annotations

import torch

from clgraft.core.nn import attention as nn
from clgraft.plugins.torch.lowering.builder import Builder, lowers
from clgraft.plugins.torch.lowering.values import NotLowered, Operand

aten = torch.ops.aten
LAST_TWO = (0, 1, 3, 2)


def _logits(
    build: Builder, q: Operand, k: Operand, dropout: float, causal: bool, mask: Operand | None, scale: float | None
) -> nn.Logits:
    if dropout:
        raise NotLowered(f"[torch] got dropout {dropout} in attention, expected none: it draws random numbers")
    if min(*q.shape, *k.shape) < 1:
        raise NotLowered(f"[torch] got attention of {q.shape} and {k.shape}, expected elements")
    given = None if mask is None else build.broadcasting(mask)
    return nn.Logits(build.matrix(q), build.matrix(k.permuted(LAST_TWO)), scale, given, causal)


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
    """Return softmax(scale q k^T + mask) v, and the logarithm of the sum of each row's exponentials."""
    y, sums = nn.attention(build.nn, _logits(build, q, k, dropout, causal, attn_mask, scale), build.matrix(v))
    return build.taken(y), build.taken(sums)


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
) -> tuple[Operand, ...]:
    """Return the gradients of q, k and v."""
    logits = _logits(build, q, k, dropout, causal, attn_mask, scale)
    matrices = build.matrix(k), build.matrix(v.permuted(LAST_TWO))
    found = nn.attention_gradients(build.nn, build.given(dy), logits, *matrices, build.given(y), build.given(sums))
    return tuple(build.taken(one) for one in found)
