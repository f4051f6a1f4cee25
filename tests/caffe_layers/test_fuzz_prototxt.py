"""The prototxt reader and the swap under a fuzzer that is guided by coverage, from a kept corpus."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing import memory_limit, runs

SCRIPT = Path(__file__).with_name("fuzz_prototxt.py")
RUNS = 20_000


def fuzz(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """Run the fuzzer on the kept corpus."""
    for i, line in enumerate(SCRIPT.with_suffix(".txt").read_text().splitlines()):
        (folder / str(i)).write_bytes(json.loads(line).encode("latin-1"))
    command = [sys.executable, str(SCRIPT), f"-dict={SCRIPT.with_suffix('.dict')}", "-max_len=900", "-timeout=30"]
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [*command, *options, str(folder)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs Atheris")
def test_damaged_nets_are_swapped_and_restored_or_refused_with_a_place(tmp_path, pytestconfig):
    done = fuzz(tmp_path, memory_limit(), *runs(RUNS, pytestconfig))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert f"Done {RUNS} runs" in done.stderr
