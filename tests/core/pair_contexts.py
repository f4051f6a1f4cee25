"""Contexts that compute products of pairs of bfloat16 wherever the tests run."""

from __future__ import annotations

from dataclasses import replace

from clgraft.core.session.context import Context


def emulated_pairs() -> Context:
    """Return a context that computes in pairs by float32 arithmetic."""
    context = Context.on(None)
    context.device = replace(context.device, has_pair_products=True, has_slow_pairs=False, matrix_units=())
    return context
