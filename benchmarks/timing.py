"""Timing, peers' numbers of threads, problem sets and files of results for the programs of this folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clgraft.core import Context, parse
from clgraft.core.problem import DTYPE_WORDS
from clgraft.plugins.command_line.bench import machine
from clgraft.plugins.command_line.bench.peer_process import best, restarted
from clgraft.plugins.command_line.bench.peer_threads import Threads
from clgraft.plugins.command_line.bench.results import NO_PEER, Measurement
from clgraft.plugins.command_line.bench.timing import Timing, compare, geometric_mean

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.problem_sets import problem_lines

__all__ = ["Timing", "best", "compare", "geometric_mean", "in_type", "keep", "problem_lines", "restarted", "row"]


def in_type(text: str, dtype: str) -> Any:
    """Return the problem of a text whose second word may be a type, in another type."""
    kind, rest = text.split(" ", 1)
    words = {name: word for word, name in DTYPE_WORDS.items()}
    return parse(f"{kind} {words[dtype]} {rest}")


def row(set_name: str, name: str, direction: str, peer: str, native: float, ours: float, **more: Any) -> Measurement:
    """Return a row of results; times are seconds, 0 and `NO_PEER` where there is no peer."""
    return Measurement(set_name, name, name, set_name, direction, peer or NO_PEER, native, ours, **more)


def keep(
    path: str,
    context: Context,
    rows: Sequence[Measurement],
    peers: Mapping[str, str],
    threads: Mapping[str, Threads] | None = None,
) -> None:
    """Write rows and where they were measured as `clgraft bench --json` does: `report.py` makes tables of such files.

    Parameters
    ----------
    path : str
        Of the file; nothing is written if it is empty.
    context : Context
        Of the device, whose peaks are measured now.
    rows : sequence of Measurement
    peers : mapping of str to str
        Each peer's name and version, by the name that rows have.
    threads : mapping of str to Threads, optional
        Of each peer.
    """
    if path:
        results = machine.record(context, shlex.join(["python", *sys.argv]))
        results.rows, results.peers, results.peer_threads = list(rows), dict(peers), dict(threads or {})
        Path(path).write_text(results.to_json(), encoding="utf-8")
