"""Processors with AVX2 and without AVX-512: what the runtimes compile for them, on the processor of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clgraft.core.runtime.toolchains import base, intel
from clgraft.core.runtime.toolchains.pocl import PoCL
from tests.folders import python_path

FOLDER = Path(__file__).parent
SHOW = "from clgraft import core; print(core.context().device.vector_width)"
# set -> every so many-th problem of it is run, and algorithms of which there has to be a result
SETS = {
    "conv": (11, {"cpu_gemm", "direct", "winograd"}),
    "depthwise": (15, {"depthwise", "depthwise_fixed", "depthwise_rows"}),
    "deconvolution": (14, set()),
    "separable": (2, {"in_kernel", "in_turn"}),
    "dense": (7, {"cpu", "cpu_panel"}),
    "pooling": (17, {"planes"}),
    "batchnorm": (13, set()),
}

pytestmark = pytest.mark.skipif("avx2" not in base.cpu_flags(), reason="needs a processor with AVX2")


@pytest.fixture(scope="module")
def environment(context, tmp_path_factory):
    """What makes the runtime of this run compile for AVX2; PoCL is told by a library in front of LLVM."""
    if not context.device.is_cpu:
        pytest.skip("the runtimes of CPU devices compile for AVX2")
    common = {**os.environ, "PYTHONPATH": python_path(), "CLGRAFT_DEVICE": context.device.selector}
    if not isinstance(context.toolchain, PoCL):
        return {**common, intel.TARGET: "core-avx2"}
    library = tmp_path_factory.mktemp("avx2") / "as_avx2.so"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(FOLDER / "as_avx2.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return {**common, "LD_PRELOAD": str(library)}


def run(environment, *words: str) -> str:
    """Run Python; return what it printed."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_narrower_targets_are_seen(context, environment):
    assert run(environment, "-c", SHOW) == "8\n"
    if intel.TARGET in environment:
        assert run({**environment, intel.TARGET: "corei7"}, "-c", SHOW) == "4\n"
        assert run({**environment, intel.TARGET: "auto"}, "-c", SHOW) == f"{context.device.vector_width}\n"


@pytest.mark.parametrize("name", sorted(SETS))
def test_kernels_are_right(environment, name):
    every, expected = SETS[name]
    count, *algorithms = run(environment, str(FOLDER / "run_as_avx2.py"), name, str(every)).split()
    assert int(count) >= 4 and expected <= set(algorithms), (count, algorithms)
