"""No memory, no home, no room on the disk: a clear error or a slower way on, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from clgraft import core

PROGRAM = """
import signal, resource, sys
import numpy as np
from clgraft import core
{before}
rng = np.random.default_rng(1)
x, w = rng.standard_normal((2, 3, 9, 9)).astype("f"), rng.standard_normal((4, 3, 3, 3)).astype("f")
y = np.full((2, 4, 9, 9), np.nan, "f")
try:
    core.context().plan(core.parse("conv n2 ic3 ih9 iw9 oc4 kh3 kw3 ph1 pw1")).run(x=x, w=w, y=y)
except core.ClgraftError as error:
    print("refused:", error)
else:
    p = np.pad(x.astype("d"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(p, (3, 3), (2, 3))
    assert np.abs(y - np.einsum("ncyxij,ocij->noyx", windows, w.astype("d"))).max() < 1e-5
    print("right")
"""


def run(before: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Run a convolution in a process of its own; environment variables of None are left out."""
    there = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "CLGRAFT_CACHE", "POCL_CACHE_DIR")}
    program = PROGRAM.format(before=textwrap.dedent(before))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**there, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_home_that_cannot_be_written():
    done = run(HOME="/proc/1", TMPDIR="/tmp")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "right\n"


@pytest.mark.parametrize("room", [100, 65_000])
def test_a_disk_without_room(tmp_path, room):
    """Files cannot grow, some of a compiler's not even start: the process goes on, and what failed is said."""
    before = f"""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        core.context()
        resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
    """
    done = run(before, CLGRAFT_CACHE=str(tmp_path / "cache"), POCL_CACHE_DIR=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "right\n" or done.stdout.startswith("refused: [kernel]")


def test_no_memory_for_a_workspace(rng):
    """The request is refused in words; plans from before and after it work."""
    context = core.context()
    text = "conv backward_filter n2 ic5 ih9 iw11 oc7 kh3 kw3 ph1 pw1"
    arrays = {
        argument.name: rng.standard_normal(argument.shape).astype(np.float32)
        for argument in core.parse(text).arguments()
    }
    before = context.plan(core.parse(text))
    before.run(**arrays)
    expected = arrays["dw"].copy()
    # the weights, packed: four terabytes, or eight where their high and low parts are
    algorithm = "cpu_gemm" if context.device.is_cpu else "gpu_gemm"
    with pytest.raises(core.ExecutionError, match=r"no memory for a workspace of [48]00\d{10} bytes") as caught:
        context.plan(core.parse("conv backward_data n1 ic500000 ih8 iw8 oc1000000 kh1 kw2"), algorithm)
    assert caught.value.status == context.lib.CLG_OUT_OF_MEMORY
    arrays["dw"][:] = np.nan
    before.run(**arrays)
    assert np.array_equal(arrays["dw"], expected)
    after = context.plan(core.parse(text), "direct")
    arrays["dw"][:] = np.nan
    after.run(**arrays)
    assert np.abs(arrays["dw"] - expected).max() < 1e-4
