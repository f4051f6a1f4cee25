"""The child process of ``clgraft warm``: it runs a model or problems once, so that their kernels are built.

It reads one job as JSON from stdin. The last line of stdout is a JSON object: what was done, or the error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

from clgraft import core
from clgraft.core.runtime import building
from clgraft.plugins.command_line import lone_run
from clgraft.plugins.plugin import REPORTED


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Run a model's task, or every problem, and return what was built."""
    began = time.perf_counter()
    if "module" in job:
        problems = importlib.import_module(job["module"]).problems(**job["arguments"])
    else:
        problems = [core.parse(text) for text in job["problems"]]
        for problem in problems:
            lone_run.bind(problem)()
    return {
        "device": str(core.context().device),
        "problems": len(problems),
        "programs": building.built[0],
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Do the job; what frameworks and drivers print goes to stderr."""
    job = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)
        try:
            answer = work(job)
        except REPORTED as error:
            answer = {"error": str(error)}
        channel.write(json.dumps(answer) + "\n")
