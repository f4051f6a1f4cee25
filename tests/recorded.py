"""What the plugin `tests.record` has written of a suite: results, processes that died, what is left to run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CRASHES = 2  # processes that a test may end until it has failed


@dataclass
class State:
    """What a file says of the tests of a suite.

    Attributes
    ----------
    selected : set of str
        Names of all tests of the suite; empty if pytest did not get so far.
    passed : set of str
    failed, skipped : dict of str to str
        With a message or a reason; modules that were skipped as a whole are skipped by their path.
    crashes : Counter of str
        How many processes died during a test.
    seconds : Counter of str
        Of each test.
    memory : dict of str to int
        MiB of its process after each test.
    in_turn : set of str
        Tests that other turns run, which are none of the selected ones.
    """

    selected: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    crashes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    memory: dict[str, int] = field(default_factory=dict)
    in_turn: set[str] = field(default_factory=set)

    @property
    def done(self) -> set[str]:
        """Tests with a result, among them those that ended too many processes."""
        crashed = {name for name, times in self.crashes.items() if times >= CRASHES}
        return self.passed | set(self.failed) | set(self.skipped) | crashed

    @property
    def left(self) -> set[str]:
        """Tests without a result."""
        return self.selected - self.done

    @property
    def next(self) -> set[str]:
        """What pytest has to run now: a test that has crashed, alone, or all that is left."""
        crashed = sorted(name for name in self.left if self.crashes[name])
        return {crashed[0]} if crashed else self.left

    def results(self) -> tuple[dict[str, str], list[str]]:
        """Return the failed tests with their messages, and the names of those that passed after a crash."""
        failed = dict(self.failed)
        for name, times in self.crashes.items():
            if name not in self.passed and name not in self.skipped:
                failed.setdefault(name, f"its process ended before the test did, {times} times")
        failed.update(dict.fromkeys(self.left - set(failed), "did not run"))
        return failed, sorted(name for name in self.crashes if name in self.passed)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written; a process may have died before the end of the last line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def read(path: Path) -> State:
    """Return what a file says; a test that has begun and not ended has crashed."""
    state, running = State(), set[str]()
    for line in lines(path) if path.exists() else ():
        name = line.get("test", "")
        if "begin" in line:
            state.crashes.update(running)
            running = set()
        elif "selected" in line:
            state.selected.update(line["selected"])
        elif "in_turn" in line:
            state.in_turn.update(line["in_turn"])
        elif "outcome" not in line:
            running.add(name)
        else:
            running.discard(name)
            state.seconds[name] += line["seconds"]
            state.memory[name] = line["memory"]
            if line["outcome"] == "passed":
                state.passed.add(name)
            else:
                (state.failed if line["outcome"] == "failed" else state.skipped)[name] = line["message"]
    state.crashes.update(running)
    return state


def wanted(path: Path) -> list[str] | None:
    """Return the names of the tests that pytest has to run with a file; None stands for all."""
    state = read(path)
    return sorted(state.next) if state.selected else None
