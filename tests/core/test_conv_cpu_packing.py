"""Weights of strided data gradients, packed for the products of all phases, each tap at its one place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgraft import core
from clgraft.core.errors import Declined
from clgraft.core.operators.conv.gemm_cpu import gemm
from clgraft.core.session.context import Context
from tests.core.conv_checks import random_arrays

pytestmark = pytest.mark.skipif(not core.context().device.is_cpu, reason="kernels for CPU devices")

# four phases, three, two, phases without taps, dilation that leaves phases or offsets out, more taps than are
# transposed at once, rows of dx shorter than a vector and longer than a tile, padding on one side, few channels
PROBLEMS = {
    "four phases, two groups": "g2 n2 ic22 ih9 iw11 oc34 kh3 kw3 sh2 sw2 ph1 pw1",
    "three phases": "n2 ic5 iw31 oc17 kw7 sw3",
    "two phases": "n1 ic9 ih7 iw10 oc3 kh2 kw5 sw2",
    "rows alone": "n1 ic9 ih7 iw10 oc3 kh3 kw5 sh2 pw2",
    "phases without taps": "n1 ic3 iw20 oc5 kw2 sw4",
    "dilated": "n1 ic4 ih12 iw15 oc6 kh3 kw3 sh2 sw2 dh3 dw2",
    "dilated by the stride": "n1 ic4 ih19 iw25 oc6 kh3 kw3 sh2 sw3 dh4 dw3 ph2 pw1",
    "many taps": "n1 ic9 ih14 iw15 oc3 kh9 kw9 sh2 sw2 ph4 pw4",
    "half": "f16 n1 ic17 ih9 iw9 oc5 kh3 kw3 sh2 sw2 ph1 pw1",
    "nine phases": "n1 ic4 ih9 iw10 oc3 kh4 kw4 sh3 sw3",
    "three axes": "n2 ic3 id5 ih6 iw7 oc4 kd3 kh3 kw3 sd2 sh2 sw2 pd1 ph1 pw1",
    "one side": "n2 ic10 ih20 iw131 oc7 kh3 kw3 sh2 sw2 ph2 qw3",
    "first layer": "n2 ic3 ih31 iw63 oc9 kh11 kw11 sh4 sw4 ph2 pw2",
    "first layer, two phases": "n2 ic3 ih30 iw62 oc9 kh7 kw7 sh2 sw2 ph3 pw3",
    "doubles": "f64 n1 ic5 ih9 iw20 oc7 kh5 kw5 sh2 sw4 ph1 pw2",
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_way_agrees_with_float64(name: str) -> None:
    problem = core.parse(f"conv backward_data {PROBLEMS[name]}")
    assert isinstance(problem, core.ConvProblem)
    arrays = {key: array for key, array in random_arrays(problem).items() if key in ("dy", "w")}
    wide = {key: array.astype("f8") for key, array in arrays.items()}
    exact = replace(problem, dtype="float64").reference(wide)["dx"]
    rounding = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}[problem.dtype]
    context = Context.on(None)
    for settings in gemm.candidates(problem, context.planner):
        if not settings:
            continue
        launches = gemm.plan(problem, context.planner, settings)
        dx = np.full(problem.arguments()[-1].shape, np.nan, problem.dtype)
        context.plan_launches(problem, launches, "cpu_gemm").run(**arrays, dx=dx)
        np.testing.assert_allclose(dx, exact, rtol=rounding, atol=rounding * np.abs(exact).max(), err_msg=str(settings))


def test_other_settings_are_refused() -> None:
    problem, context = core.parse(f"conv backward_data {PROBLEMS['dilated']}"), Context.on(None)
    for settings in ({"vectors": 9, "merged": 0}, {"merged": 1}, {"vectors": 3, "panel": 448}):
        with pytest.raises(Declined, match="expected merged, shifted"):
            gemm.plan(problem, context.planner, settings)
