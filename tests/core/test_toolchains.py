"""Which toolchain serves which platform, what they say of devices, and what remains when one is taken away."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import pytest

from clgraft import core
from clgraft.core.runtime import program_cache, toolchains
from clgraft.core.runtime.toolchains.amd import AMD
from clgraft.core.runtime.toolchains.base import Toolchain
from clgraft.core.runtime.toolchains.intel import Intel
from clgraft.core.runtime.toolchains.mesa import Mesa
from clgraft.core.runtime.toolchains.nvidia import NVIDIA, units_of
from clgraft.core.runtime.toolchains.pocl import PoCL
from clgraft.core.runtime.toolchains.pocl3 import PoCL3


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        ("Portable Computing Language", "OpenCL 3.0 PoCL 3.1+debian  Linux, None+Asserts, RELOC", PoCL3),
        ("Portable Computing Language", "OpenCL 3.0 PoCL 6.0  Linux, Release, RELOC", PoCL),
        ("Portable Computing Language", "OpenCL 2.0 pocl 1.6", PoCL),
        ("Intel(R) OpenCL", "OpenCL 3.0 LINUX", Intel),
        ("Intel(R) OpenCL Graphics", "OpenCL 3.0", Intel),
        ("NVIDIA CUDA", "OpenCL 3.0 CUDA 12.4.131", NVIDIA),
        ("AMD Accelerated Parallel Processing", "OpenCL 2.1 AMD-APP", AMD),
        ("rusticl", "OpenCL 3.0", Mesa),
        ("Clover", "OpenCL 1.1 Mesa 22.3.6", Mesa),
        ("Oclgrind", "OpenCL 3.0 (Oclgrind 21.10)", Toolchain),
    ],
)
def test_platforms_and_their_toolchains(platform, version, expected):
    assert toolchains.serving(platform, version) is expected


def test_a_device_has_what_its_toolchain_says(context):
    assert type(context.toolchain) is type(toolchains.of(context.cl_device))
    capabilities = context.toolchain.capabilities()
    assert {name: getattr(context.device, name) for name in capabilities} == capabilities
    assert context.device.launch_cost > 0


def test_what_units_of_a_generation_are_there():
    assert units_of(0)["matrix_units"] == units_of(75)["matrix_units"] == ()
    assert units_of(80)["matrix_units"] == units_of(89)["matrix_units"] == ("mma",)
    assert units_of(90)["matrix_units"] == ("mma", "wgmma")
    assert [capability for capability in (70, 75, 80, 86, 90) if units_of(capability)["splits_float32"]] == [80]
    assert [capability for capability in (0, 61, 70, 90) if units_of(capability)["has_shuffles"]] == [70, 90]
    assert [capability for capability in (0, 61, 90) if units_of(capability)["runs_groups_at_once"]] == [61, 90]


def test_variables_that_change_programs(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("POCL_", "CL_CONFIG_", "IGC_"))]:
        monkeypatch.delenv(name)
    assert not list(toolchains.steering())
    for name in ("POCL_WORK_GROUP_METHOD", "POCL_AFFINITY", "POCL_CACHE_DIR", "CL_CONFIG_CPU_TARGET_ARCH", "IGC_X"):
        monkeypatch.setenv(name, "1")
    assert sorted(toolchains.steering()) == ["CL_CONFIG_CPU_TARGET_ARCH", "IGC_X", "POCL_WORK_GROUP_METHOD"]


@pytest.mark.parametrize("kept", [(), (PoCL,)], ids=["none", "pocl"])
def test_devices_work_without_a_toolchain_of_their_own(kept, monkeypatch, rng):
    """With what is known of drivers in general, and with PoCL's in place of that for one version."""
    problem = core.parse("conv forward n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1")
    arrays, results = problem.sample(rng), []
    for toolchain in (toolchains.TOOLCHAINS, kept):
        monkeypatch.setattr(toolchains, "TOOLCHAINS", toolchain)
        context = core.Context.on(None)
        results.append(np.full((2, 7, 9, 11), np.nan, np.float32))
        context.plan(problem).run(**arrays, y=results[-1])
        if isinstance(context.toolchain, PoCL):  # version 6 ends a process that asks for binaries of programs
            monkeypatch.setenv("CLGRAFT_CACHE", "off")
    assert np.allclose(*results, rtol=1e-5, atol=1e-5) and not np.isnan(results[0]).any()


def test_a_device_without_fused_multiply_adds_gets_none(monkeypatch, rng):
    """Software would compute them there, a hundred times slower; where rounding is told by one, it stays."""
    context = core.Context.on(None)
    monkeypatch.setattr(context.toolchain, "fuses", False)
    sources = []
    whole = context.toolchain.kernel_text
    monkeypatch.setattr(context.toolchain, "kernel_text", lambda *a: sources.append(whole(*a)[0]) or whole(*a))
    problem = core.parse("conv forward n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1")
    arrays, y = problem.sample(rng), np.full((2, 7, 9, 11), np.nan, np.float32)
    context.plan(problem).run(**arrays, y=y)
    assert np.allclose(y, problem.reference(arrays)["y"], rtol=1e-5, atol=1e-5)
    assert sources and all("#define UNFUSED 1\n" in source for source in sources)
    x, tail = np.linspace(0, 8, 999, dtype=np.float32), np.full(999, np.nan, np.float32)
    context.plan(core.parse("pointwise x0[999] : y0 = erfc(x0)")).run(x0=x, y0=tail)
    expected = np.array([math.erfc(value) for value in x.tolist()])
    assert np.max(np.abs(tail - expected) / expected) < 2e-6


def test_the_compilers_warnings_never_reach_the_terminal(context, capfd):
    """PoCL's compiler counts warnings on the process's stderr: "1 warning generated."."""
    _, options = context.toolchain.kernel_text(
        "cast/cast.cl", "cast_elements", {"STORAGE": 32, "SOURCE": 0, "TARGET": 1}
    )
    source = f"#warning {time.time()}\nkernel void f(global int *a) {{ int unused; *a = 1; }}\n"
    program_cache.build(context.cl_context, context.cl_device, source, options)
    assert "warning" not in capfd.readouterr().err
