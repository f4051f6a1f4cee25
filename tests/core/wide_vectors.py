"""Contexts for vectors of 16 lanes, on every CPU: what such vectors compute is tested on processors without them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from clgraft import core
from clgraft.core.session.context import Context

LANES = 16


@cache
def wide_context() -> Context:
    """Return the session's context, or one of the same CPU that plans for longer vectors, which compilers split."""
    context = core.context()
    if not context.device.is_cpu or context.device.vector_width >= LANES:
        return context
    wide = Context.on(None)
    wide.device = replace(wide.device, vector_width=LANES)
    return wide
