"""Crews: child processes that share tasks. What somebody waits for comes before what will be wanted later."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from clgraft.core.runtime.children import Child, leave, take


@dataclass(eq=False)
class Task:
    """What a child is to do.

    Attributes
    ----------
    key : hashable
        Tasks with the same key do the same.
    what : mapping
        What a child reads as a line of JSON.
    begun : callable
        Called before a child gets it.
    ended : callable
        Called when a child has tried it, or when none will.
    over : bool
        Whether it has ended.
    """

    key: Hashable
    what: Mapping[str, Any]
    begun: Callable[[], None]
    ended: Callable[[], None]
    over: bool = False


class Crew:
    """Children that are started in the same way, and their tasks. Safe to use from any thread.

    Parameters
    ----------
    command : sequence of str
    environment : mapping of str to str
        How a child is started.
    may_wait : bool
        Whether children wait for more when nothing is left to do.
    failed : callable
        Called when a child has failed, before anybody who waits for its task goes on.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], may_wait: bool, failed: Callable[[], None]
    ) -> None:
        self._started, self._may_wait, self._failed = (command, environment), may_wait, failed
        self._changed = threading.Condition()
        self._left: deque[Task] = deque()  # what no child has begun
        self._known: dict[Hashable, Task] = {}  # what is not over
        self._working = 0  # children

    def do(
        self, tasks: Sequence[Task], most: int, number: Callable[[int], int], at_once: bool = True
    ) -> list[Task] | None:
        """Hand over tasks.

        Parameters
        ----------
        tasks : sequence of Task
        most : int
            Children that may work.
        number : callable
            Returns how many children are wanted, from the number of those that work or wait; with 0 nothing is done.
        at_once : bool
            Whether the tasks come before all that no child has begun.

        Returns
        -------
        list of Task or None
            What to wait for: where a task of the same key is not over, that one. None if nothing is done.

        Raises
        ------
        OSError
            If a child cannot be started.
        """
        with self._changed:
            hired = take(*self._started, max(0, most - self._working))
            try:
                wanted = number(self._working + len(hired))
                hired += [Child(*self._started) for _ in range(wanted - self._working - len(hired))]
            except Exception:
                leave(hired, self._may_wait)
                raise
            if not wanted:
                leave(hired, self._may_wait)
                return None
            found = [self._queued(task, at_once) for task in (reversed(tasks) if at_once else tasks)]
            self._working += len(hired)
            for child in hired:
                threading.Thread(target=self._feed, args=(child,), daemon=True).start()
        return found

    def wait(self, tasks: Sequence[Task]) -> None:
        """Wait until tasks are over."""
        with self._changed:
            self._changed.wait_for(lambda: all(task.over for task in tasks))

    def _queued(self, task: Task, at_once: bool) -> Task:
        """Add a task at one of the ends, unless it is known; move it to the front if it comes at once now."""
        known = self._known.setdefault(task.key, task)
        if known is not task:
            if not at_once or known not in self._left:
                return known
            self._left.remove(known)
            known.begun = task.begun
        if at_once:
            self._left.appendleft(known)
        else:
            self._left.append(known)
        return known

    def _feed(self, child: Child) -> None:
        """Hand tasks to a child, one after the other, until none is left or the child fails."""
        task = None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            while child.answers():
                task = self._next(task)
                if task is None:
                    leave([child], self._may_wait)
                    return
                task.begun()
                child.give(task.what)
        child.end()
        if child.process.returncode:
            self._failed()
        with self._changed:
            self._working -= 1
            given_up = [] if self._working else list(self._left)
            for one in (*given_up, *([task] if task else [])):
                self._end(one)
            if given_up:
                self._left.clear()

    def _next(self, done: Task | None) -> Task | None:
        """Note that a task is over and return the next one; None if the child has nothing to do."""
        with self._changed:
            if done is not None:
                self._end(done)
            if self._left:
                return self._left.popleft()
            self._working -= 1
            return None

    def _end(self, task: Task) -> None:
        task.ended()
        task.over = True
        del self._known[task.key]
        self._changed.notify_all()
