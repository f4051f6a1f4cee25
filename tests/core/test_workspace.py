"""What the workspace holds from earlier runs must not matter: all that is read from it was written before."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from clgraft import core
from tests.core.every_run import SETS, arrays, plans, run

POISON = "conv backward_filter n2 ic128 ih32 iw32 oc128 kh3 kw3 ph1 pw1"


@pytest.fixture(scope="module")
def poison():
    """Fill the workspace with NaN, by a problem that keeps much in it."""
    plan = core.context().plan(core.parse(POISON))
    nan = {a.name: np.full(a.shape, np.nan, np.float32) for a in plan.arguments}

    def fill():
        run(plan, nan)
        assert np.isnan(nan["dw"]).all()

    return fill


@pytest.mark.parametrize("name", SETS)
def test_results_do_not_depend_on_the_workspace(name, poison):
    rng = np.random.default_rng(4)
    for plan in plans([name], 40_000):
        values = arrays(plan, rng)
        clean = {key: value.copy() for key, value in values.items()}
        poison()
        run(plan, values)
        run(plan, clean)
        for argument in plan.arguments:
            if argument.role != "in":
                got, expected = values[argument.name], clean[argument.name]
                assert np.array_equal(got, expected, equal_nan=True), f"{argument.name} of {plan}"


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
