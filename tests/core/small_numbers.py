"""What products of bfloat16 by a processor's own instructions make of numbers below the smallest normal float32."""

from __future__ import annotations

import numpy as np

from clgraft import core
from clgraft.core.session.context import Context


def expect_zeros_for_small_numbers(context: Context, algorithm: str) -> None:
    """Expect those below the smallest normal number of float32 to count as zeros, and that one not to."""
    problem = core.parse("conv forward bf16 n1 ic2 ih1 iw16 oc1 kh1 kw1")
    x = np.zeros((1, 2, 1, 16), problem.arguments()[0].dtype)
    x[:, 0], x[:, 1] = 2.0**-127, 2.0**-126
    w, y = np.full((1, 2, 1, 1), 2.0**100, x.dtype), np.full((1, 1, 1, 16), np.nan, x.dtype)
    context.plan(problem, algorithm).run(x=x, w=w, y=y)
    assert (y == 2.0**-26).all()
