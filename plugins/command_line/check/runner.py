"""Consistency checks on the user's own device: operators or a whole net against their native counterparts.

A check runs in a process of its own and sends a row at a time: a framework that aborts takes only that process along.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from clgraft.core.errors import ClgraftError

# what caffe's older protobuf classes need, and silence about every layer that it makes
_ENVIRONMENT = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_minloglevel": "2"}


class CheckError(ClgraftError, RuntimeError):
    """A check that could not be carried through."""


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
        The native operator's own error against the same float64 reference, where there is one.
    seconds, native_seconds : float or None
        Median time of the operator, ours and native, in one row of each operator.
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
        """Whether the error is within its limit; not a number never is."""
        return bool(self.note) or self.error <= self.limit

    def __str__(self) -> str:
        verdict = "-   " if self.note else "pass" if self.passed else "FAIL"
        times = "".join(
            f" {'' if value is None else f'{1e3 * value:.3f}':>9}" for value in (self.native_seconds, self.seconds)
        )
        text = self.note or f"{self.error:.1e} (limit {self.limit:.1e})"
        return f"{verdict} {text:<26}{times}  {self.name}: {self.tensor}"


HEADER = f"{'':4} {'error':<26} {'native ms':>9} {'ours ms':>9}  what"


def run(module: str, arguments: dict[str, Any], device: str | None = None) -> Iterator[CheckRow]:
    """Run a checker in a process of its own.

    Parameters
    ----------
    module : str
        A module with a function `rows(**arguments)` that yields `CheckRow`. If its process dies, its function
        `explain(words, **arguments)` may turn the lines that it printed into the reason; empty if it finds none.
    arguments : dict
        What JSON can hold.
    device : str, optional
        Device selector.

    Raises
    ------
    CheckError
        When the process ended before the check did; holds its last words.
    """
    environment = {**_ENVIRONMENT, **os.environ}
    if device:
        environment["CLGRAFT_DEVICE"] = device
    command = [sys.executable, "-m", "clgraft.plugins.command_line.check.runner", module, json.dumps(arguments)]
    with tempfile.TemporaryFile(mode="w+", errors="replace") as words:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True, env=environment)
        assert child.stdout is not None
        done = False
        try:
            for line in child.stdout:
                message = json.loads(line)
                if "reason" in message:
                    raise CheckError(message["reason"])
                if "done" in message:
                    done = True
                else:
                    yield CheckRow(**message)
        except BaseException:
            child.kill()
            raise
        finally:
            child.stdout.close()
            status = child.wait()
        if not done:
            words.seek(0)
            lines = [line.rstrip() for line in words if line.strip()]
            reason = _explain(module, lines, arguments)
            heading = f"[check] the process ended with status {status}; its last words:"
            raise CheckError(reason or "\n".join([heading, *lines[-8:]]))


def _explain(module: str, lines: list[str], arguments: dict[str, Any]) -> str:
    """Return what a checker makes of the lines that its process left; empty if it makes nothing of them."""
    try:
        explain = getattr(importlib.import_module(module), "explain", None)
    except ImportError:
        return ""
    return explain(lines, **arguments) if explain else ""


def show_progress(rows: list[CheckRow], stream: TextIO) -> None:
    """Say how far a check is: on a terminal in one line that changes, else in a line for each row."""
    line = f"{len(rows)} rows, {sum(not row.passed for row in rows)} failed: {rows[-1].name}"
    print(f"\r{line:<79.79}" if stream.isatty() else line, end="" if stream.isatty() else "\n", file=stream, flush=True)


def as_json(rows: list[CheckRow], device: str) -> str:
    """Return the outcome for programs; numbers that JSON lacks become null."""
    listed = []
    for row in rows:
        entry = {**dataclasses.asdict(row), "passed": row.passed}
        listed.append({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()})
    return json.dumps({"device": device, "passed": all(row.passed for row in rows), "rows": listed}, indent=2)


def _work(module: str, arguments: dict[str, Any]) -> None:
    """Be the process: rows go where stdout was, everything that a framework prints goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(message: dict[str, Any]) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        try:
            for row in importlib.import_module(module).rows(**arguments):
                send(dataclasses.asdict(row))
        except (ClgraftError, OSError) as error:
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


def expect_file(model: Path) -> None:
    """Raise `CheckError` unless a model's file is there."""
    if not model.is_file():
        raise CheckError(f"[check] got {model}, which is not a file")


if __name__ == "__main__":
    # the class of rows is this module's under its real name, not under __main__
    importlib.import_module("clgraft.plugins.command_line.check.runner")._work(sys.argv[1], json.loads(sys.argv[2]))
