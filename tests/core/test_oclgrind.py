"""Every kernel under Oclgrind, a simulator that sees data races and accesses out of bounds.

Oclgrind's check for uninitialised memory is not used: it takes vectors whose lanes are set one by one for such.
`test_every_run` shows in another way that nothing is read before it is written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.every_run import SETS
from tests.folders import python_path

SCRIPT = Path(__file__).with_name("run_under_oclgrind.py")
WRONG = re.compile(r"^(Invalid|Read-write|Write-write|.*\brace\b|.*divergence|OCLGRIND FATAL).*", re.M)
# every so many-th problem of a set is run, and others whenever it is the set's turn again
EVERY = {
    **{"conv": 10, "depthwise": 12, "depthwise_strided": 4, "separable": 2, "grouped": 5, "deconvolution": 4},
    **{"dense": 4, "channels_last": 3, "sixteen_bits": 2, "pooling": 6, "softmax": 2, "batchnorm": 3},
    **{"interpolation": 3, "copying": 2},
}
LEAST = {"casts": 3, "updates": 3, "totals": 2}  # kernels that a set runs on a processor, of small sets

pytestmark = [
    pytest.mark.skipif(shutil.which("oclgrind") is None, reason="needs Oclgrind"),
    pytest.mark.skipif(os.environ.get("CLGRAFT_DEVICE") == "intel", reason="Oclgrind is a device: once is enough"),
]


def oclgrind(*words: str) -> tuple[str, list[str]]:
    """Run the script; return what it printed, and what Oclgrind found."""
    command = ["oclgrind", "--data-races", "--max-errors", "20", sys.executable, "-W", "ignore", str(SCRIPT), *words]
    environment = {**os.environ, "CLGRAFT_DEVICE": "oclgrind", "PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, [found[0] for found in WRONG.finditer(done.stderr)]


def test_wrong_kernels_are_seen():
    _, found = oclgrind("plant")
    assert any("race" in line for line in found)
    assert any(line.startswith("Invalid write") for line in found)


@pytest.mark.parametrize("name", SETS)
def test_kernels_are_clean(name, pytestconfig):
    turn = pytestconfig.getoption("turn") // pytestconfig.getoption("whole")
    printed, found = oclgrind(name, str(EVERY.get(name, 1)), str(turn))
    assert not found
    assert int(printed.split()[0]) >= LEAST.get(name, 6)
