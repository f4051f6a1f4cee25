"""Consistency checks on the user's own device: operators, or a whole net, compared with the framework's.

A check runs in a child process, which sends a row at a time: a framework that aborts ends only that process.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clgraft.core.errors import ClgraftError
from clgraft.plugins import registry
from clgraft.plugins.command_line import child
from clgraft.plugins.plugin import REPORTED


class CheckError(ClgraftError, RuntimeError):
    """Raised where a check could not be carried out."""


@dataclass(frozen=True)
class CheckRow:
    """One tensor that was compared.

    Attributes
    ----------
    name : str
        The problem or the layer.
    tensor : str
        Which of its results.
    error : float
        Largest difference (of nets in MXNet: norm of the difference), computed in float64, relative to the reference.
    limit : float
        The largest error that passes.
    native_error : float or None
        The framework's own error against the same float64 reference, where there is one.
    seconds, native_seconds : float or None
        Median time of the operator, ours and the framework's, in one row of each operator.
    note : str
        Why nothing could be compared, else empty.
    """

    name: str
    tensor: str
    error: float
    limit: float
    native_error: float | None = None
    seconds: float | None = None
    native_seconds: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the error is within its limit, which NaN never is."""
        return bool(self.note) or self.error <= self.limit

    def __str__(self) -> str:
        verdict = "-   " if self.note else "pass" if self.passed else "FAIL"
        times = "".join(
            f" {'' if value is None else f'{1e3 * value:.3f}':>9}" for value in (self.native_seconds, self.seconds)
        )
        text = self.note or f"{self.error:.1e} (limit {self.limit:.1e})"
        return f"{verdict} {text:<26}{times}  {self.name}: {self.tensor}"


HEADER = f"{'':4} {'error':<26} {'native ms':>9} {'ours ms':>9}  what"


def run(
    module: str, arguments: dict[str, Any], device: str | None = None, counted: Callable[[int], None] = lambda _: None
) -> Iterator[CheckRow]:
    """Run a checker in a child process.

    Parameters
    ----------
    module : str
        A module with a function `rows(**arguments)` that yields `CheckRow`, and, if it knows the number of names
        of its rows beforehand, a function `count(**arguments)`.
        If its process dies, its function `explain(words, **arguments)` may turn the lines that it printed into the
        reason; empty if it finds none.
    arguments : dict
        What JSON can hold.
    device : str, optional
        Device selector.
    counted : callable, optional
        Receives the number of names of rows before the first row.

    Raises
    ------
    CheckError
        If the process ended before the check did; holds its last lines.
    """
    environment = registry.environment(device)
    command = child.calling("clgraft.plugins.command_line.check.runner", "work", module, json.dumps(arguments))
    with tempfile.TemporaryFile(mode="w+", errors="replace") as words:
        try:
            for message in child.messages(command, environment, CheckError, stderr=words):
                if "count" in message:
                    counted(message["count"])
                elif "done" not in message:
                    yield CheckRow(**message)
        except child.Ended as end:
            words.seek(0)
            lines = [line.rstrip() for line in words if line.strip()]
            reason = _explain(module, lines, arguments)
            heading = f"[check] the process ended with status {end.status}; its last lines:"
            raise CheckError(reason or "\n".join([heading, *lines[-8:]])) from None


def _explain(module: str, lines: list[str], arguments: dict[str, Any]) -> str:
    """Return what a checker makes of the lines that its process left; empty if it makes nothing of them."""
    try:
        explain = getattr(importlib.import_module(module), "explain", None)
    except ImportError:
        return ""
    return explain(lines, **arguments) if explain else ""


def work(module: str, given: str) -> None:
    """Check in the child process: rows go where stdout was, everything that a framework prints goes to stderr.

    Parameters
    ----------
    module, given : str
        As `run` has them; the arguments as JSON.
    """
    arguments: dict[str, Any] = json.loads(given)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        try:
            checker = importlib.import_module(module)
            if hasattr(checker, "count"):
                send({"count": checker.count(**arguments)})
            for row in checker.rows(**arguments):
                send(dataclasses.asdict(row))
        except REPORTED as error:
            send({"reason": str(error)})
        else:
            send({"done": True})


def relative_error(got: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest value expected, both taken as float64."""
    import numpy as np

    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if expected.size == 0:
        return 0.0
    difference = float(np.max(np.abs(got - expected)))
    return difference / max(float(np.max(np.abs(expected))), float(np.finfo(np.float32).tiny))


def distance(got: Any, expected: Any) -> float:
    """Return the norm of the difference relative to the norm expected: single kinks do not dominate it."""
    import numpy as np

    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(got - expected)) / max(norm, float(np.finfo(np.float32).tiny))
