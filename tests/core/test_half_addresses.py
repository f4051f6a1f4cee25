"""Float16 at every address: slices begin anywhere, and a compiler may take equal halves for aligned ones."""

from __future__ import annotations

import numpy as np
import pytest

from clgraft import core

PROBLEMS = (
    "pointwise f16 x0[1] x1[1000] : y0 = x0;",
    "pointwise f16 x0[5,1] x1[5,100] : y0 = x0;",
    "pointwise f16 x0[1000] : y0 = 1;",
    "batchnorm f16 backward_inference n2 c3 s100",
    "pool f16 backward average n1 c2 ih8 iw8 kh8 kw8",
    "concat forward f16 outer[2] extents[19,40] inner[3]",
    "transpose f16 x[33,40] axes[1,0]",
    "slice backward f16 x[3,70] y[1,33] at[1,2]",
    "dropout forward f16 x[1000]",
    "softmax forward f16 n3 c40",
    "softmax backward f16 n1 c3 s100",
    "softmax backward f16 n5 c70 log",
    "lrn forward f16 n1 c3 s100 size3 beta0.75",
    "conv f16 backward_data n1 ic1 ih20 iw40 oc2 kh1 kw1 sh2 sw2",
)


@pytest.mark.parametrize("text", PROBLEMS)
def test_equal_values_at_every_address(context, text):
    problem = core.parse(text)
    scalars = {name: 1e-3 for name in problem.scalars()}
    expected: dict[str, np.ndarray] = {}
    for offset in range(33):
        arrays = {}
        for argument in problem.arguments():
            block = np.ones(argument.size + 64, argument.dtype)
            arrays[argument.name] = block[offset : offset + argument.size].reshape(argument.shape)
            if argument.role == "out":
                arrays[argument.name][...] = np.nan
        context.plan(problem).run(scalars, **arrays)
        for argument in problem.arguments():
            if argument.role == "out":
                got = arrays[argument.name]
                np.testing.assert_array_equal(got, expected.setdefault(argument.name, got))
                rest = got.base
                assert (rest[:offset] == 1).all() and (rest[offset + argument.size :] == 1).all()
