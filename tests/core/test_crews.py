"""Crews of child processes: what somebody waits for comes first, and nobody waits for a child that has failed."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from clgraft.core.runtime.crews import Crew, Task

# does a task when a line arrives in a pipe, and ends at one that says so
CHILD = """
import json, os, sys
print("ready", flush=True)
for line in sys.stdin:
    if os.read(int(sys.argv[1]), 1) != b"g" or json.loads(line)["name"] == "fatal":
        sys.exit(1)
    print("done", flush=True)
"""


class Group:
    """A crew whose children do a task each time when `go` is called."""

    def __init__(self, may_wait: bool = False) -> None:
        self.reader, self.writer = os.pipe()
        os.set_inheritable(self.reader, True)
        self.failures: list[str] = []
        command = [sys.executable, "-c", CHILD, str(self.reader)]
        self.crew = Crew(command, dict(os.environ), may_wait, lambda: self.failures.append("failed"))
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.changed = threading.Condition()

    def task(self, name: str) -> Task:
        return Task(name, {"name": name}, lambda: self._note(self.begun, name), lambda: self._note(self.ended, name))

    def _note(self, names: list[str], name: str) -> None:
        with self.changed:
            names.append(name)
            self.changed.notify_all()

    def go(self, count: int = 1) -> None:
        os.write(self.writer, b"g" * count)

    def until(self, names: list[str], expected: list[str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: names == expected, timeout=60.0), names


@pytest.fixture
def group():
    made = Group()
    yield made
    made.go(100)
    os.close(made.writer)
    os.close(made.reader)


def one(_: int) -> int:
    return 1


def test_what_is_waited_for_comes_before_the_rest_and_is_done_once(group):
    early = group.crew.do([group.task(name) for name in "abcd"], 1, one, at_once=False)
    group.until(group.begun, ["a"])
    asked: list[int] = []
    awaited = group.crew.do([group.task(name) for name in "exc"], 1, lambda there: asked.append(there) or 1)
    assert asked == [1]
    assert len(group.crew._known) == 6  # c is known
    group.go(6)
    group.crew.wait(awaited)
    assert group.ended[:4] == ["a", "e", "x", "c"]
    group.crew.wait(early)
    assert group.begun == group.ended == ["a", "e", "x", "c", "b", "d"]


def test_a_task_that_a_child_is_at_is_waited_for(group):
    group.crew.do([group.task("a"), group.task("b")], 1, one, at_once=False)
    group.until(group.begun, ["a"])
    awaited = group.crew.do([group.task("a")], 1, one)
    threading.Timer(0.2, group.go).start()
    group.crew.wait(awaited)
    assert group.ended == ["a"]


def test_nothing_is_done_where_no_child_is_wanted(group):
    assert group.crew.do([group.task("a")], 1, lambda there: there) is None
    assert not group.crew._known


def test_a_child_that_ends_ends_its_task_and_the_others_go_on(group):
    awaited = group.crew.do([group.task(name) for name in ("fatal", "b", "c")], 2, lambda _: 2)
    group.go(3)
    group.crew.wait(awaited)
    assert sorted(group.ended) == ["b", "c", "fatal"]
    assert group.failures == ["failed"]
    assert not group.crew._known


def test_where_all_children_have_ended_nobody_waits_and_others_can_be_hired(group):
    awaited = group.crew.do([group.task(name) for name in ("fatal", "b", "c")], 1, one)
    group.go()
    group.crew.wait(awaited)
    assert group.begun == ["fatal"]
    assert sorted(group.ended) == ["b", "c", "fatal"]
    again = group.crew.do([group.task("b")], 1, one)
    group.go()
    group.crew.wait(again)
    assert group.begun == ["fatal", "b"]


def test_a_child_that_cannot_start_leaves_no_tasks(monkeypatch):
    crew = Crew(["/does/not/exist"], dict(os.environ), False, lambda: None)
    with pytest.raises(OSError):
        crew.do([Task("a", {}, lambda: None, lambda: None)], 1, one)
    assert not crew._known
