"""`make test` and `make test-all` together run every test, and `make test` covers every operator."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import everyday
from tests.core.every_run import SETS
from tests.folders import ROOT

FOLDERS = ("abi", "caffe_layers", "core", "mxnet_ops", "plugins")
LIST = """
import sys
import pytest

class Names:
    def pytest_collection_finish(self, session):
        print([(item.nodeid, item.get_closest_marker("exhaustive") is None) for item in session.items])

sys.exit(pytest.main(["-qq", "--collect-only", "--no-summary", "tests"], plugins=[Names()]))
"""


@pytest.fixture(scope="session")
def selection(pytestconfig: pytest.Config) -> dict[str, bool]:
    """Return every test's name with whether `make test` runs it."""
    if pytestconfig.args == ["tests"] and not pytestconfig.getoption("ignore"):
        return pytestconfig.stash[everyday.COLLECTED]  # what this very run has found
    done = subprocess.run([sys.executable, "-c", LIST], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = ast.literal_eval(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert len(found) == len(dict(found))
    return dict(found)


def function(name: str) -> str:
    """Return a test's name without its parameters."""
    return name.partition("[")[0]


def recipe(target: str) -> str:
    """Return the commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert found, target
    return found[1]


def test_no_test_is_lost(selection: dict[str, bool]) -> None:
    """`make test` leaves out what is marked and nothing else; `make test-all` leaves out nothing."""
    assert re.findall(r"-[mk] +(\S+ \S+|\S+)", recipe("test").replace("-m pytest", "")) == ['"not exhaustive"']
    assert not re.search(r" -[mk] |--ignore|--deselect", recipe("test-all").replace("-m pytest", ""))
    assert sum(selection.values()) > 1000 and list(selection.values()).count(False) > 1000


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_part_is_covered(folder: str, selection: dict[str, bool]) -> None:
    assert sum(chosen for name, chosen in selection.items() if name.startswith(f"tests/{folder}/")) >= 20


def test_every_operator_is_covered(selection: dict[str, bool]) -> None:
    """`make test` runs every implementation, and keeps some problems of each test that compares with float64."""
    chosen = [name for name, daily in selection.items() if daily]
    sets = {name for name in selection if "::test_each_implementation_serves_a_set[" in name}
    assert len(sets) == len(SETS) and sets <= set(chosen)
    functions = {function(name) for name in chosen}
    compared = {function(name) for name in selection if re.search(r"/core/.*::test_(matches_float64|is_exact)", name)}
    assert len(compared) >= 12
    assert compared <= functions, compared - functions


def test_every_rule_is_about_a_test(selection: dict[str, bool]) -> None:
    """A rule is changed together with the file, the function or the parameters that it names."""
    tests = ROOT / "tests"
    functions = {
        path.relative_to(tests).as_posix(): re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
        for path in tests.rglob("test_*.py")
    }
    for rule in (*everyday.RULES, *everyday.RANDOM, *everyday.MANY, *everyday.WHOLE, *everyday.LONG, *everyday.ONCE):
        assert any(rule.fits(file, one) for file in functions for one in functions[file]), rule
    parameters = [name.partition("[")[2][:-1] for name in selection]
    for rule in everyday.RULES:
        if not rule.files.startswith("caffe_layers"):  # no tests of it are collected where Caffe is missing
            assert all(any(fnmatchcase(one, pattern) for one in parameters) for pattern in rule.keep), rule


def test_turns_together_run_every_test() -> None:
    """Every turn runs some tests of each function, or of all that are unlike each other."""
    names = [("core/test_dense.py", "test_a", 7, True), ("core/test_dense.py", "test_random_a", 5, True)]
    names += [("mxnet_ops/test_nets.py", "test_c", 2, True)]
    names += [("core/test_oclgrind.py", "test_b", 40, True), ("core/test_dense.py", "test_d", 40, False)]
    items = [
        SimpleNamespace(
            nodeid=f"{name}[{i}]",
            name=name,
            path=ROOT / "tests" / file,
            get_closest_marker=lambda _, marked=marked: marked,
        )
        for file, name, count, marked in names
        for i in range(count)
    ]
    seen: Counter[str] = Counter()
    for turn in range(12):
        left = {item.nodeid for item in everyday.beyond_shares(items, everyday.Shares(4, 6, 3, 3, 2, turn))}
        run = [item.nodeid for item in items if item.nodeid not in left]
        counts = Counter(map(function, run))
        assert counts["test_a"] in (2, 3) and counts["test_random_a"] in (1, 2) and counts["test_c"] == 1
        assert 5 <= counts["test_b"] <= 25 and 10 <= counts["test_d"] <= 30
        seen.update(run)
    assert len(seen) == len(items)
    assert [seen[f"test_{name}[0]"] for name in ("a", "random_a", "b", "c", "d")] == [4, 3, 4, 6, 6]
    assert not everyday.beyond_shares(items, everyday.Shares())


def test_what_nothing_changes_runs_once(tmp_path: Path) -> None:
    """Tests of `ONCE` that have passed in another suite of the same run are left out, and no others."""
    names = {"tests/test_docs.py::test_a": "passed", "tests/test_docs.py::test_b": "skipped"}
    names["tests/core/test_dense.py::test_a"] = "passed"
    lines = [
        {"test": name, "outcome": found, "message": "", "seconds": 0, "memory": 0} for name, found in names.items()
    ]
    (tmp_path / "suite.tests").write_text("\n".join(map(json.dumps, lines)))
    split = (name.split("::") for name in names)
    items = [SimpleNamespace(nodeid=f"{file}::{name}", path=ROOT / file, name=name) for file, name in split]
    assert [item.nodeid for item in everyday.run_before(items, tmp_path)] == ["tests/test_docs.py::test_a"]
