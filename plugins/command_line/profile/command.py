"""The command `clgraft profile`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import ClgraftError
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments, asked, child, events, terminal
from clgraft.plugins.command_line.profile import summary
from clgraft.plugins.plugin import with_regions

WORKER = "clgraft.plugins.command_line.profile.worker"


class ProfileError(ClgraftError, RuntimeError):
    """Raised where a model could not be run to its end."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    profile = commands.add_parser(
        "profile",
        help="show how long each operator of a model takes on your device",
        description="Run a swapped model, or problems, and show the time of every operator: of forward and backward "
        "of one pass, the median of several passes after one that warms up. Times include transfers to a device with "
        "memory of its own. A region, or a whole ONNX model, runs as one call: its problems are timed alone for the "
        "rows, and the pass is what the call takes, from arrays to arrays.",
    )
    profile.add_argument(
        "what",
        nargs="+",
        help=f"a model ({registry.known_models()}), or problems: their text, lines of CLGRAFT_VERBOSE, a file of "
        "either, or - for stdin",
    )
    profile.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    arguments.add_shapes(profile)
    arguments.add_regions(profile)
    profile.add_argument("--forward", action="store_true", help="only forward, of models (default: gradients as well)")
    profile.add_argument(
        "--passes", type=arguments.count, default=5, metavar="N", help="how often everything is run (default: 5)"
    )
    profile.add_argument(
        "--trace", type=arguments.new_file, metavar="FILE", help="write a trace for chrome://tracing or Perfetto"
    )
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Profile what the user asked for and print the table."""
    from clgraft.core.runtime import devices

    device = str(devices.describe(devices.select(options.device)))
    job = _job(options)
    found, alone = collect(job, options.device)
    rows = summary.rows(found, options.passes)
    if options.trace is not None:
        options.trace.write_text(events.chrome_trace(found, f"clgraft on {device}"))
    if options.json:
        print(
            json.dumps(
                {"device": device, "passes": options.passes, **summary.as_record(rows, found, options.passes, alone)},
                indent=2,
            )
        )
        return 0
    print(f"on {device}")
    heads, cells = summary.table(rows)
    terminal.table(heads, cells, sys.stdout, [terminal.RIGHT] * 4)
    for line in summary.sums(rows, found, options.passes, alone):
        print(line)
    if options.trace is not None:
        print(f"trace: {options.trace}")
    return 0


def _job(options: argparse.Namespace) -> dict[str, Any]:
    passes = options.passes + 1
    model = asked.model(options.what, "profile")
    if model is None:
        asked.refuse_options_of_models("profile", shape=options.shape, regions=options.regions, forward=options.forward)
        return {"problems": asked.problems(options.what, "profile"), "passes": passes}
    task = registry.find(model, "profile").problems(model, dict(options.shape), not options.forward)
    task = with_regions(task, options.regions)
    return {"module": task.module, "arguments": {**task.arguments, "passes": passes}}


def collect(job: dict[str, Any], device: str | None) -> tuple[list[events.Event], float]:
    """Run a job in a child process; return its plans and runs, and when problems of regions began to run alone.

    Raises
    ------
    ProfileError
        If the process ends too early.
    """
    environment = registry.environment(device)
    with tempfile.TemporaryDirectory(prefix="clgraft-profile-") as folder:
        file = os.path.join(folder, "events")
        environment.update({settings.VERBOSE.name: "plan,run,start", settings.VERBOSE_FILE.name: file})
        command = child.calling(WORKER)
        done = subprocess.run(
            command,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
        answer = "".join(done.stdout.splitlines()[-1:])
        word, _, alone = answer.partition(" ")
        if done.returncode or word != "done":
            reason = "" if done.returncode else answer
            last = [line for line in done.stderr.splitlines() if line.strip()][-8:]
            status = f"[profile] the process ended with status {done.returncode}; its last lines:"
            raise ProfileError(reason or "\n".join([status, *last]))
        with open(file, encoding="utf-8") as lines:
            return list(events.read(lines)), float(alone)
