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

from clgraft.caffe_layers.solver.solver import SNAPSHOT, STOP, Solver
from clgraft.core.model import ModelError

EFFECTS = (STOP, SNAPSHOT, "none")


def log(file: str, line: str) -> None:
    """Write a line on stderr as Caffe's glog does: severity and date, time, process, file and line."""
    now = datetime.now()
    sys.stderr.write(f"I{now:%m%d %H:%M:%S.%f} {os.getpid():5d} {file}] {line}\n")
    sys.stderr.flush()


def train(
    solver: str | os.PathLike[str],
    weights: Sequence[str] = (),
    snapshot: str | os.PathLike[str] | None = None,
    device: str | None = None,
    sigint: str = STOP,
    sighup: str = SNAPSHOT,
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

    Returns
    -------
    int
        0, the exit status.
    """
    if weights and snapshot is not None:
        raise ModelError("[train] got weights and a snapshot, expected one of them: a snapshot names its weights")
    log("caffe.cpp:204", "Use clgraft's device.")
    made = Solver(solver, weights, snapshot, device, log=log)
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
