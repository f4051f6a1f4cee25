"""Trains as Caffe's command does: log lines of its form, and its signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from clgraft.caffe_layers.solver.solver import SNAPSHOT, STOP, Solver
from clgraft.core.model import Group, ModelError

EFFECTS = (STOP, SNAPSHOT, "none")


class Terminal(Protocol):
    """What shows progress below the lines of a log."""

    def print(self, line: str) -> None:
        """Print a line."""

    def show(self, description: str, done: int | None = None, total: int | None = None) -> None:
        """Show what is being done, and how much is done already."""


class Lines:
    """Writes lines on stderr as Caffe's glog does: severity and date, time, process, file and line.

    Parameters
    ----------
    terminal : Terminal, optional
        What writes them; by default they go to stderr.
    """

    def __init__(self, terminal: Terminal | None = None) -> None:
        self._terminal = terminal

    def __call__(self, file: str, line: str, severity: str = "I") -> None:
        """Write a line."""
        now = datetime.now()
        text = f"{severity}{now:%m%d %H:%M:%S.%f} {os.getpid():5d} {file}] {line}"
        if self._terminal is not None:
            self._terminal.print(text)
            return
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def train(
    solver: str | os.PathLike[str],
    weights: Sequence[str] = (),
    snapshot: str | os.PathLike[str] | None = None,
    device: str | None = None,
    sigint: str = STOP,
    sighup: str = SNAPSHOT,
    precision: str | None = None,
    group: Group | None = None,
    terminal: Terminal | None = None,
    using: str = "Use clgraft's device.",
) -> int:
    """Train as a solver's prototxt says.

    Parameters
    ----------
    solver : path
    weights : sequence of path
        ``.caffemodel`` files to begin with.
    snapshot : path, optional
        A ``.solverstate`` to go on from.
    device : str, optional
        As `clgraft.core.context` takes it.
    sigint, sighup : str
        What these signals do: one of `EFFECTS`.
    precision, group
        As of `Solver`.
    terminal : Terminal, optional
        Shows the iterations and the loss.
    using : str
        The line of the log about devices.

    Returns
    -------
    int
        0, the exit status.
    """
    if weights and snapshot is not None:
        raise ModelError("[train] got weights and a snapshot, expected one of them: a snapshot names its weights")
    log = Lines(terminal) if group is None or not group.rank else _silent
    log("caffe.cpp:204", using)
    made = Solver(solver, weights, snapshot, device, log=log, precision=precision, group=group)
    if terminal is not None:
        show, total = terminal.show, made.parameters.max_iter
        show("", made.iteration, total)
        made.shown = lambda done, loss: show(f"loss {loss:.4g}", done, total)
    log("caffe.cpp:239", "Starting Optimization")
    if snapshot is not None:
        log("caffe.cpp:230", f"Resuming from {Path(snapshot)}")
    began = time.perf_counter()
    with _signals(made, {"SIGINT": sigint, "SIGHUP": sighup}):
        try:
            made.solve()
        finally:
            made.close()
    took = time.perf_counter() - began
    if made.feed.waited and took:
        log("caffe.cpp:250", f"{100 * made.feed.waited / took:.1f} % of the time was spent waiting for data.")
    log("caffe.cpp:251", "Optimization Done.")
    return 0


def _silent(file: str, line: str, severity: str = "I") -> None:
    """Write nothing."""


@contextmanager
def _signals(solver: Solver, effects: dict[str, str]) -> Iterator[None]:
    """Have signals ask a solver to stop or to take a snapshot after the iteration that runs."""
    before = {}
    for name, effect in effects.items():
        number = getattr(signal, name, None)
        if number is not None and effect != "none":
            before[number] = signal.signal(number, lambda *_, effect=effect: solver.request(effect))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
