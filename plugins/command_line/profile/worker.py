"""The child process of ``clgraft profile``: it runs a model or problems; the C runtime writes the events.

It reads one job as JSON from stdin. The last line of stdout is ``done`` and when problems of regions began to run
alone, in seconds of the monotonic clock, or the reason why there is nothing to show.
"""

from __future__ import annotations

import collections
import importlib
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from clgraft import core
from clgraft.plugins.command_line import lone_run
from clgraft.plugins.plugin import REPORTED


def work(job: dict[str, Any]) -> None:
    """Run a model's task, and the problems inside of its regions; or every problem `passes` times."""
    if "module" in job:
        importlib.import_module(job["module"]).problems(**job["arguments"])
        # a graph runs as one call: what is inside of it runs once more, problem by problem
        passes = job["arguments"]["passes"]
        counts: collections.Counter[str] = collections.Counter()
        for text, name, runs in core.context().graph_runs():
            if name != "view":
                counts[text] += max(1, runs // passes)
        _run_alone(counts, passes)
        return
    _run_alone(dict.fromkeys(job["problems"], 1), job["passes"])


def _run_alone(counts: Mapping[str, int], passes: int) -> None:
    """Run every problem as often as a pass has it, `passes` times."""
    for text, count in counts.items():
        call = lone_run.bind(core.parse(text))
        for _ in range(count * passes):
            call()


def main() -> None:
    """Do the job; what frameworks and drivers print goes to stderr."""
    job = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)
        try:
            work(job)
        except REPORTED as error:
            channel.write(" ".join(str(error).split("\n")) + "\n")
        else:
            channel.write(f"done {min(lone_run.first, default=math.inf)}\n")
