"""Suites of `.ci/run` go on where processes die, and say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import recorded
from tests.folders import ROOT, python_path

TESTS = """
import os
from pathlib import Path
import pytest

def test_first(): pass
def test_ends_the_first_process():
    if not Path("seen").exists():
        Path("seen").touch()
        os._exit(1)
def test_ends_every_process(): os._exit(1)
def test_fails(): assert 1 == 2, "one is not two"
def test_skipped(): pytest.skip("no reason")
@pytest.mark.parametrize("n", range(4))
def test_last(n): pass
"""
CONFTEST = """
import pytest
from tests import everyday

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    config.stash[everyday.IN_TURN] = [item.nodeid for item in items if item.name == "test_last[3]"]
    items[:] = [item for item in items if item.name != "test_last[3]"]
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_each_test_has_a_result(processes: int, tmp_path: Path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_none.py").write_text('import pytest\npytest.skip("needs much", allow_module_level=True)')
    file = tmp_path / "a suite.tests"
    environment = {**os.environ, "CLGRAFT_TEST_RECORD": str(file), "PYTHONPATH": python_path()}
    words = ["-m", "pytest", "-p", "tests.record", "--rootdir", ".", "-p", "no:cacheprovider", "-n", str(processes)]
    command = [sys.executable, str(ROOT / ".ci" / "suite.py"), str(file), "60", sys.executable, *words]
    words = [*command, "--max-worker-restart", "0", "--dist", "worksteal", "."]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    state = recorded.read(file)
    failed, crashed = state.results()
    assert [name.partition("::")[2] for name in crashed] == ["test_ends_the_first_process"]
    assert {name.partition("::")[2] for name in failed} == {"test_ends_every_process", "test_fails"}
    assert "one is not two" in failed["test_some.py::test_fails"]
    assert "ended before the test did, 2 times" in failed["test_some.py::test_ends_every_process"]
    assert sorted(state.skipped) == ["test_none.py", "test_some.py::test_skipped"]
    assert "needs much" in state.skipped["test_none.py"] and "no reason" in state.skipped["test_some.py::test_skipped"]
    assert len(state.passed) == 5 and not state.left and state.in_turn == {"test_some.py::test_last[3]"}
    assert "largest process" in done.stdout


def test_what_did_not_run_has_failed():
    state = recorded.State(selected={"a", "b"}, passed={"a"})
    assert state.results() == ({"b": "did not run"}, [])
