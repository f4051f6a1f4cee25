"""The same benchmark on several numbers of cores, each in a process of its own, and how both sides gain from cores."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.runtime import toolchains
from clgraft.plugins.command_line.bench.cases import GROUPS
from clgraft.plugins.command_line.bench.results import NO_PEER, Measurement, Results, command_line
from clgraft.plugins.command_line.bench.timing import geometric_mean
from clgraft.plugins.command_line.main import NO_READER
from clgraft.plugins.plugin import PluginError

# Variables that hold a number of threads: OpenMP's, BLAS libraries' and OpenCL drivers'.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    *toolchains.thread_variables(),
    settings.PEER_THREADS.name,  # what `clgraft bench` gives peers that read no variable of their own
)
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
Speeds = dict[tuple[str, str, str], dict[int, tuple[float, float]]]


def cores() -> list[int]:
    """Return the processors that this process may use, one of each core first, where the system tells."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    place: dict[str, int] = {}  # how many of a core have been listed
    ranks = []
    for processor in allowed:
        try:
            core = Path(SIBLINGS.format(processor)).read_text().strip()
        except OSError:
            core = str(processor)
        ranks.append(place.get(core, 0))
        place[core] = ranks[-1] + 1
    return [processor for _, processor in sorted(zip(ranks, allowed))]


def measure(options: argparse.Namespace) -> Iterator[Results]:
    """Run the benchmark once for each number of cores; its output is shown as it comes.

    Raises
    ------
    PluginError
        For more cores than there are, problems on stdin, which only one process can read, or a run that fails.
    """
    allowed = cores()
    most = max(options.threads)
    if most > len(allowed):
        raise PluginError(f"[bench] got {most} threads, expected at most {len(allowed)}, the cores of this process")
    if "-" in options.sets:
        raise PluginError("[bench] got - with --threads, expected problems in a file: several processes read them")
    for count in options.threads:
        print(f"\n{count} of {len(allowed)} cores", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            command = [sys.executable, "-m", "clgraft.plugins.command_line", "bench", *_words(options)]
            code = subprocess.run([*command, "--json", str(file)], **bound(allowed[:count])).returncode
            if code == NO_READER:
                raise BrokenPipeError
            if code or not file.exists():
                raise PluginError(f"[bench] got exit status {code} with {count} threads, expected 0")
            run = Results.read(file)
            run.command = command_line()
            yield run


def _words(options: argparse.Namespace) -> list[str]:
    """Return the arguments of a run on one number of cores."""
    words = [*options.sets, f"--seconds={options.seconds}"]
    for name in ("peers", "nets", "directions", "batch"):
        given = getattr(options, name)
        if given:
            words.append(f"--{name}={','.join(map(str, given))}")
    if options.device:
        words.append(f"--device={options.device}")
    return [*words, f"--only={options.only}"] if options.only else words


def bound(processors: Sequence[int]) -> dict[str, Any]:
    """Return what makes a child process use these processors alone, and as many threads."""
    environment = {**os.environ, **{name: str(len(processors)) for name in VARIABLES}}
    if not hasattr(os, "sched_setaffinity"):
        return {"env": environment}
    return {"env": environment, "preexec_fn": lambda: os.sched_setaffinity(0, processors)}


def speeds(runs: Iterable[Results]) -> Speeds:
    """Return how many times as fast ours and a peer are as with the least cores.

    Returns
    -------
    dict
        By (group, direction, peer), then by number of cores: ours and the peer's, geometric means over the cases that
        all runs have.
    """
    rows: dict[tuple[str, str, str], dict[tuple[str, str, str], dict[int, Measurement]]] = {}
    counts = sorted({run.threads for run in runs})
    for run in runs:
        for row in run.rows:
            if row.peer != NO_PEER:
                found = rows.setdefault((row.group, row.direction, row.peer), {})
                found.setdefault((row.set, row.name, row.text), {})[run.threads] = row
    result: Speeds = {}
    for key, cases in rows.items():
        whole = [case for case in cases.values() if len(case) == len(counts)]
        for count in counts if whole else ():
            pairs = [(case[counts[0]], case[count]) for case in whole]
            ours = geometric_mean([least.ours / row.ours for least, row in pairs])
            result.setdefault(key, {})[count] = (
                ours,
                geometric_mean([least.native / row.native for least, row in pairs]),
            )
    return result


def lines(runs: Sequence[Results]) -> list[str]:
    """Return a Markdown table of `speeds`: ours / the peer's for each number of cores."""
    found = speeds(runs)
    counts = sorted({run.threads for run in runs})
    if len(counts) < 2 or not found:
        return []
    text = [
        f"Speed against that with {next(run.cores for run in runs if run.threads == counts[0])}: ours / the peer's."
    ]
    text += ["", "| set | | peer | " + " | ".join(map(str, counts)) + " |"]
    text.append("|---" * (3 + len(counts)) + "|")
    for (group, direction, peer), by_count in found.items():
        cells = [f"{ours:.2f}x / {native:.2f}x" for ours, native in by_count.values()]
        text.append(f"| {GROUPS.get(group, 'whole nets')} | {direction} | {peer} | " + " | ".join(cells) + " |")
    return [*text, ""]
