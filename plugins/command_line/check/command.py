"""The command `clgraft check`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from clgraft.core.files import expect_file
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments, asked, terminal
from clgraft.plugins.plugin import Task

_log = logging.getLogger("clgraft")
OPERATORS = "clgraft.plugins.command_line.check.core"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line, with the arguments that plugins have for their models."""
    check = commands.add_parser(
        "check",
        help="compare the operators, or a swapped model, with reference results on your device",
        description="Compare results and gradients on your device: without a model every operator with float64 "
        "arithmetic, else the swapped model with the framework's own operators. Exit status 1 if a row fails.",
    )
    check.add_argument("model", type=Path, nargs="?", help=registry.known_models())
    check.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    arguments.add_shapes(check)
    arguments.add_regions(check)
    for plugin in registry.plugins():
        try:
            plugin.add_check_arguments(check.add_argument_group(f"for {plugin.name}"))
        except argparse.ArgumentError as error:
            _log.warning("arguments of plugin %s are left out: %s", plugin.name, error)
    check.add_argument(
        "--repeats", type=arguments.count, default=3, metavar="N", help="how often each is timed (default: 3)"
    )
    check.add_argument("--json", action="store_true", help="print JSON, and the rows on stderr")
    check.add_argument("--progress", action="store_true", help="print a line for each row on stderr")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the operators or a model and print a line for each row."""
    from clgraft.core.runtime import devices
    from clgraft.plugins.command_line.check import runner
    from clgraft.plugins.command_line.check.report import CheckReport

    device = str(devices.describe(devices.select(options.device)))
    options.shapes = dict(options.shape)
    if options.model is None:
        asked.refuse_options_of_models("check", shape=options.shape, regions=options.regions)
        task = Task(OPERATORS, {"repeats": options.repeats})
    else:
        plugin = registry.find(expect_file(options.model, "check", "a model"), "check")
        task = plugin.check(options.model, options)
    output = sys.stderr if options.json else sys.stdout
    print(f"on {device}\n{runner.HEADER}", file=output, flush=True)
    report = CheckReport(device)
    names: set[str] = set()
    with terminal.Progress(output) as progress:
        total: list[int] = []  # how many problems there are, if the checker knows
        for row in runner.run(task.module, task.arguments, options.device, total.append):
            report.rows.append(row)
            names.add(row.name)
            progress.print(str(row))
            failures = len(report.failed)
            progress.show(f"{failures} failed, {row.name}", len(names), total[0] if total else None)
            if options.progress:
                print(f"{terminal.plural(len(report.rows), 'row')}, {failures} failed: {row.name}", file=sys.stderr)
    print(report.summary, file=output)
    if options.json:
        print(report.to_json())
    return 0 if report.passed else 1
