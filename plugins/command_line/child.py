"""A child process that does a command's work, and the messages that it sends: an object of JSON on each line."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any


class Ended(Exception):
    """Raised if a child ends before it has said that it is done; holds its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def calling(module: str, function: str = "main", *arguments: str) -> list[str]:
    """Return the command line of a child that calls a module's function with texts.

    Ctrl-C ends the child at once and in silence, also while it imports: what it means, the parent says.
    """
    return [sys.executable, "-m", "clgraft.plugins.command_line.child", module, function, *arguments]


def messages(
    command: Sequence[str],
    environment: Mapping[str, str],
    error: type[Exception],
    given: str | None = None,
    stderr: IO[Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run a command and yield its messages up to the one that has ``done``.

    The child is ended if the caller stops reading.

    Parameters
    ----------
    command : sequence of str
    environment : mapping of str to str
        The child's whole environment.
    error : type
        Raised with the text of a message that has a ``reason``.
    given : str, optional
        What the child reads from its standard input; by default it has the parent's.
    stderr : file, optional
        What takes its standard error; by default the parent's.

    Raises
    ------
    Ended
        If it ends without that message.
    """
    stdin = None if given is None else subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True, env=dict(environment)
    )
    assert child.stdout is not None
    done = False
    try:
        if child.stdin is not None and given is not None:
            with contextlib.suppress(BrokenPipeError), child.stdin:  # one that has ended already says why below
                child.stdin.write(given)
        for line in child.stdout:
            message = json.loads(line)
            if "reason" in message:
                raise error(message["reason"])
            done = done or "done" in message
            yield message
    except BaseException:
        child.kill()
        raise
    finally:
        child.stdout.close()
        status = child.wait()
    if not done:
        raise Ended(status)


def _call(module: str, function: str, *arguments: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    getattr(importlib.import_module(module), function)(*arguments)


if __name__ == "__main__":
    _call(*sys.argv[1:])
