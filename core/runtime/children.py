"""Child processes that do tasks, one line of JSON each, and wait for more: those of build_child.py.

A start, and what a compiler does before its first kernel, take a second together. So children without work wait for
some, because a backward pass, another region or another net often follows. They end when this process ends.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PATIENCE = 120.0  # seconds without an answer after which a child is ended
WAITING = 10.0  # seconds that a child waits for more tasks

_lock = threading.Lock()
_waiting: list[Child] = []


class Child:
    """A child process.

    Parameters
    ----------
    command : sequence of str
    environment : mapping of str to str
        All of its variables.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._began_as = [*command], {**environment}
        self._free, self.free_since = False, 0.0
        # without close_fds Python can start it by posix_spawn(): fork() would run the handlers of frameworks
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            close_fds=False,
        )

    def is_started_as(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a new child would be the same."""
        return self._began_as == ([*command], {**environment})

    def waits(self) -> bool:
        """Return whether it lives and has nothing to do."""
        return self._free and self.process.poll() is None

    def answers(self) -> bool:
        """Wait until it is free; return False if it has ended. One that does not answer is ended."""
        if self._free:
            return True
        assert self.process.stdout is not None
        timer = threading.Timer(PATIENCE, self.process.kill)
        timer.daemon = True  # nobody may wait for the child when this process ends
        timer.start()
        try:
            self._free = bool(self.process.stdout.readline())
        finally:
            timer.cancel()
        return self._free

    def give(self, task: Mapping[str, Any]) -> None:
        """Hand it a task.

        Raises
        ------
        OSError
            If it has ended.
        """
        assert self.process.stdin is not None
        self._free = False
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it end, which it does when nothing more can come; kill it if it does not."""
        try:
            self.process.communicate(timeout=2.0)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def take(command: Sequence[str], environment: Mapping[str, str], most: int) -> list[Child]:
    """Return the children that wait and were started in this way, `most` of them at most."""
    with _lock:
        found = [child for child in _waiting if child.waits() and child.is_started_as(command, environment)][:most]
        _waiting[:] = [child for child in _waiting if child not in found]
    return found


def leave(children: Iterable[Child], may_wait: bool = True) -> None:
    """Let children wait for more tasks for a while; end those that are not free, or all if they may not wait."""
    now, stay = time.monotonic(), False
    for child in children:
        if may_wait and child.waits():
            child.free_since, stay = now, True
            with _lock:
                _waiting.append(child)
        else:
            child.end()
    if stay:
        timer = threading.Timer(WAITING, _dismiss)
        timer.daemon = True
        timer.start()


def _dismiss() -> None:
    """End the children that have waited for long."""
    latest = time.monotonic() - WAITING
    with _lock:
        dismissed = [child for child in _waiting if child.free_since <= latest]
        _waiting[:] = [child for child in _waiting if child.free_since > latest]
    for child in dismissed:
        child.end()
