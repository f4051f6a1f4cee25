"""`examples/torch_train.py` trains, agrees with PyTorch, and says what runs on the device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
from tests.folders import ROOT, python_path


def test_the_example_learns_and_agrees():
    command = [sys.executable, str(ROOT / "examples" / "torch_train.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": python_path()})
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "step   PyTorch   clgraft" and "operators in" in done.stdout and "they agree" in lines[-1]
