"""Weights of strided data gradients, packed for all phases in one pass: the bits of a pass for each phase."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.operators.conv.gemm_cpu import gemm
from clgraft.core.session.context import Context
from tests.core.conv_checks import random_arrays

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# four phases, three, two, phases without taps, dilation that leaves phases out, more taps than are transposed at once
PROBLEMS = {
    "four phases, two groups": "g2 n2 ic22 ih9 iw11 oc34 kh3 kw3 sh2 sw2 ph1 pw1",
    "three phases": "n2 ic5 iw31 oc17 kw7 sw3",
    "two phases": "n1 ic9 ih7 iw10 oc3 kh2 kw5 sw2",
    "phases without taps": "n1 ic3 iw20 oc5 kw2 sw4",
    "dilated": "n1 ic4 ih12 iw15 oc6 kh3 kw3 sh2 sw2 dh3 dw2",
    "many taps": "n1 ic9 ih14 iw15 oc3 kh9 kw9 sh2 sw2 ph4 pw4",
    "half": "f16 n1 ic17 ih9 iw9 oc5 kh3 kw3 sh2 sw2 ph1 pw1",
    "nine phases": "n1 ic4 ih9 iw10 oc3 kh4 kw4 sh3 sw3",
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_has_the_bits_of_separate_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = core.parse(f"conv backward_data {PROBLEMS[name]}")
    assert isinstance(problem, core.ConvProblem)
    arrays = {key: array for key, array in random_arrays(problem).items() if key in ("dy", "w")}
    results, packings = [], []
    for together in (4, 0):
        monkeypatch.setattr(gemm, "TOGETHER", together)
        context = Context.on(None)
        launches = gemm.plan(problem, context, {"vectors": 3, "merged": 0})
        packings.append(sum(bool(launch.prepares) for launch in launches.launches))
        dx = np.full(problem.arguments()[-1].shape, np.nan, problem.dtype)
        context.plan_launches(problem, launches, "cpu_gemm").run(**arrays, dx=dx)
        results.append(dx)
    assert packings[0] == (9 if name == "nine phases" else 1) <= packings[1]
    np.testing.assert_array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    wide = {key: array.astype("f8") for key, array in arrays.items()}
    exact = replace(problem, dtype="float64").reference(wide)["dx"]
    rounding = 2e-3 if problem.dtype == "float16" else 1e-5
    np.testing.assert_allclose(results[0], exact, rtol=rounding, atol=rounding * np.abs(exact).max())
