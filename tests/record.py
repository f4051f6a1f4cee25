"""A pytest plugin (`-p tests.record`) that writes down what becomes of each test, while the tests run.

``CLGRAFT_TEST_RECORD`` names the file. A process that dies takes no results with it: pytest, called again with the same
file, runs what is left. A test during which a process died is run again first, alone; if it ends another process, it
has failed (see `tests.recorded`). `.ci/suite.py` calls pytest until nothing is left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pytest

from tests import everyday, recorded

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def _message(report: Any) -> str:
    """Return why a test failed or was skipped."""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)


class Writer:
    """Writes a line for each test that begins or ends, in the process that pytest was started in."""

    def __init__(self, path: Path, chosen: list[str] | None) -> None:
        before = recorded.read(path)
        self._chosen, self._selected, self._in_turn = chosen, before.selected, before.in_turn
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._ended: dict[str, tuple[str, str, float]] = {}
        self._write(begin=os.getpid())

    def _write(self, **content: Any) -> None:
        self._file.write("\n" * ("begin" in content) + json.dumps(content) + "\n")
        self._file.flush()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of xdist what it has to run."""
        node.workerinput["record"] = self._chosen

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._select(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._select(item.nodeid for item in session.items)
        self._leave(session.config.stash.get(everyday.IN_TURN, []))

    def _select(self, names: Iterable[str]) -> None:
        new = sorted(set(names) - self._selected)
        if new:
            self._selected.update(new)
            self._write(selected=new)

    def _leave(self, names: Iterable[str]) -> None:
        new = sorted(set(names) - self._in_turn)
        if new:
            self._in_turn.update(new)
            self._write(in_turn=new)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process of xdist has left to other turns, unless it died."""
        self._leave(getattr(node, "workeroutput", {}).get("in_turn", []))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._write(test=report.nodeid, outcome=report.outcome, message=_message(report), seconds=0, memory=0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call", "teardown"):  # xdist's report of a process that died
            return
        outcome, message, seconds = self._ended.pop(report.nodeid, ("passed", "", 0.0))
        if report.outcome == "failed" or (report.outcome == "skipped" and outcome == "passed"):
            outcome, message = report.outcome, _message(report)
        seconds += report.duration
        if report.when != "teardown":
            self._ended[report.nodeid] = outcome, message, seconds
            return
        memory = dict(report.user_properties).get("MiB", 0)
        self._write(test=report.nodeid, outcome=outcome, message=message, seconds=round(seconds, 3), memory=memory)


class Chooser:
    """Leaves out what does not run now, and notes the memory of the process after each test."""

    def __init__(self, chosen: list[str] | None) -> None:
        self._chosen = chosen

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._chosen is None:
            return
        names = set(self._chosen)
        left = [item for item in items if item.nodeid not in names]
        items[:] = [item for item in items if item.nodeid in names]
        config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        item.user_properties.append(("MiB", round(int(pages) * PAGE_MIB)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["in_turn"] = session.config.stash.get(everyday.IN_TURN, [])


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Chooser(config.workerinput["record"]))
        return
    path = Path(os.environ["CLGRAFT_TEST_RECORD"])
    chosen = recorded.wanted(path)
    config.pluginmanager.register(Writer(path, chosen))
    config.pluginmanager.register(Chooser(chosen))
