"""A child process that does a command's work, and the messages that it sends: an object of JSON on each line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any


class Ended(Exception):
    """Raised if a child ends before it has said that it is done; holds its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


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
            with child.stdin:
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
