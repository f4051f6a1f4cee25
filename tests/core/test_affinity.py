"""Where threads may run: a CPU runtime keeps its own threads on cores of their own, and nobody else's."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from clgraft import core

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")


def affinity() -> set[int]:
    return os.sched_getaffinity(0)


def test_a_context_a_build_and_a_run_leave_the_thread_where_it_may_run():
    everywhere = affinity()
    seen = {}

    def work() -> None:
        context = core.Context.on(None)
        seen["context"] = affinity()
        plan = context.plan(core.parse("conv n2 ic3 ih9 iw11 oc4 kh3 kw3"))
        seen["plan"] = affinity()
        arrays = {a.name: np.ones(a.shape, a.dtype) for a in plan.problem.arguments()}
        for number in range(3):
            plan.run(**arrays)
            seen[f"run {number}"] = affinity()

    for target in (work, threading.Thread(target=work)):
        target() if callable(target) else (target.start(), target.join())
        assert len(seen) == 5
        assert seen == dict.fromkeys(seen, everywhere)
        seen.clear()


def test_a_thread_that_first_runs_another_threads_plan():
    everywhere = affinity()
    plan = core.context().plan(core.parse("pool max n1 c1 ih4 iw4 kh2 kw2"))
    arrays = {a.name: np.ones(a.shape, a.dtype) for a in plan.problem.arguments()}
    seen: list[set[int]] = []
    thread = threading.Thread(target=lambda: (plan.run(**arrays), seen.append(affinity())))
    thread.start()
    thread.join()
    assert seen == [everywhere]
