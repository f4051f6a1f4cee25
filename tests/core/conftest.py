"""Kernels for GPUs are built without optimisation on CPU devices: the drivers of GPUs have compilers of their own."""

from __future__ import annotations

import pytest

from clgraft import core

# tests that compute for longer than their kernels take to be built
BUSY = ("test_products_on_every_micro_kernel", "test_five_taps_err_at_most_ten_times_as_much")


@pytest.fixture(autouse=True)
def without_optimisation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pyopencl say so to the compiler in tests whose file or function is named after GPUs."""
    file, function = request.node.path.name, request.node.originalname
    if "gpu" in file + function and function not in BUSY and core.context().device.is_cpu:
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")
