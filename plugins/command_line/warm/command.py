"""The command `clgraft warm`: build ahead what a model's first run would build."""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

from clgraft.core.errors import ClgraftError
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments, asked, child, terminal

WORKER = "clgraft.plugins.command_line.warm.worker"


class WarmError(ClgraftError, RuntimeError):
    """Raised where a model could not be run."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    warm = commands.add_parser(
        "warm",
        help="build a model's kernels ahead, so that its first run does not wait for them",
        description="Run a swapped model once on your device, forward, or with --train forward and backward. The "
        "compiled kernels stay on disk, for every process of yours with the same device, driver and clgraft.",
    )
    warm.add_argument(
        "what",
        nargs="+",
        help=f"a model ({registry.known_models()}), or problems: their text, a file of them, or - for stdin",
    )
    warm.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    arguments.add_shapes(warm)
    warm.add_argument("--train", action="store_true", help="gradients as well")
    warm.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Warm what the user asked for and print what was built."""
    from clgraft.core.runtime import devices

    job = _job(options)
    devices.select(options.device)  # a wrong one is said before anything runs
    found = build(job, options.device)
    programs, problems = (terminal.plural(found[f"{noun}s"], noun) for noun in ("program", "problem"))
    print(f"{problems} on {found['device']}: {programs} built in {found['seconds']:.1f} s")
    return 0


def _job(options: argparse.Namespace) -> dict[str, Any]:
    model = asked.model(options.what, "warm")
    if model is None:
        asked.refuse_options_of_models("warm", shape=options.shape, train=options.train)
        return {"problems": asked.problems(options.what, "warm")}
    task = registry.find(model, "warm").problems(model, dict(options.shape), options.train)
    return {"module": task.module, "arguments": task.arguments}


def build(job: dict[str, Any], device: str | None) -> dict[str, Any]:
    """Run a job in a child process, whose messages and progress reach the terminal; return what it reports.

    Raises
    ------
    WarmError
        If it could not be done.
    """
    environment = registry.environment(device)
    done = subprocess.run(
        child.calling(WORKER),
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    answer = (done.stdout.splitlines() or [""])[-1]
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        raise WarmError(f"[warm] the process ended with status {done.returncode}") from None
    if "error" in found:
        raise WarmError(found["error"])
    return found
