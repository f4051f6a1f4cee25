"""Kernels for GPUs are built without optimisation on CPU devices: the drivers of GPUs have compilers of their own."""

from __future__ import annotations

import pytest

from clgraft import core
from clgraft.core.operators.batchnorm import rows_teams
from clgraft.core.operators.conv.gemm_gpu import halves
from tests.core.conv_checks import force_halves

# tests that compute for longer than their kernels take to be built
BUSY = ("test_products_on_every_micro_kernel", "test_five_taps_err_at_most_ten_times_as_much")


@pytest.fixture(autouse=True)
def without_optimisation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pyopencl say so to the compiler in tests whose file or function is named after GPUs."""
    file, function = request.node.path.name, request.node.originalname
    if "gpu" in file + function and function not in BUSY and core.context().device.is_cpu:
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list:
    """A list of a tile and a number of parts, which are then chosen for every product with operands of 16 bits."""
    wanted = force_halves(monkeypatch)
    monkeypatch.setattr(halves, "FULL", 0)
    monkeypatch.setattr(halves._HalvesBuilder, "choose_windows", lambda *sizes: None)
    return wanted


@pytest.fixture
def rows_in_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have batch norms of few rows in channels last compute and take sums as those of many do."""
    monkeypatch.setattr(rows_teams, "HELD_BYTES", {})
