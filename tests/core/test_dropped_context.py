"""Contexts that nobody uses any more."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from clgraft import core


def test_a_dropped_context_is_given_up():
    """At once, without the garbage collector, and not before the last of its plans; drivers have few to give."""
    context = core.Context.on(None)
    plan = context.plan(core.parse("pointwise x0[7] : y0 = x0 + 1;"))
    handle, lib, counters = context.handle, context.lib, context.ffi.new("clg_counters *")
    gone = weakref.ref(context)
    gc.disable()
    try:
        del context
        assert gone() is None
        assert lib.clg_context_counters(handle, counters) == 0
        x, y = np.arange(7, dtype=np.float32), np.full(7, np.nan, np.float32)
        plan.run(x0=x, y0=y)
        assert np.array_equal(y, x + 1)
        del plan
        assert lib.clg_context_counters(handle, counters) == lib.CLG_INVALID_HANDLE
    finally:
        gc.enable()
