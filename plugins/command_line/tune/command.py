"""The command ``clgraft tune``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TextIO

from clgraft.core.planning.device import DeviceInfo
from clgraft.core.runtime import folders
from clgraft.core.tuning import problem_sets
from clgraft.core.tuning.database import FILE
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments, asked
from clgraft.plugins.command_line.tune import budget, imported, supervise, wanted
from clgraft.plugins.command_line.tune.report import Report, export

UNFINISHED = 3  # exit status: the budget ended first


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    tune = commands.add_parser(
        "tune",
        help="search the fastest kernels for your device",
        description="Search the fastest implementation and settings of problems on your device. Every candidate's "
        "result is checked; what was found is kept in your cache folder, and later runs use it. A search that was "
        "interrupted goes on where it stopped. Exit status 1 if a problem could not be searched or its result not be "
        f"kept, {UNFINISHED} if the budget ended first.",
    )
    tune.add_argument(
        "what",
        nargs="*",
        help=f"a problem ('conv n8 ic64 ...'), a set ({', '.join(problem_sets.names())}), an operator (conv), a file "
        f"of problems or of lines of CLGRAFT_VERBOSE, - for those of stdin, or a model ({registry.known_models()})",
    )
    tune.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    tune.add_argument(
        "--budget",
        type=arguments.seconds,
        metavar="SECONDS",
        help="stop after so long; spent on the problems that take most time first (default: none)",
    )
    tune.add_argument(
        "--seconds", type=arguments.seconds, default=60.0, metavar="S", help="of one problem's candidates (default: 60)"
    )
    tune.add_argument(
        "--forward",
        action="store_true",
        help="only forward, of sets, operators and models (default: gradients as well)",
    )
    tune.add_argument("--batch", type=arguments.count, metavar="N", help="instead of the sets' batch size")
    arguments.add_shapes(tune)
    arguments.add_regions(tune)
    tune.add_argument("--again", action="store_true", help="forget what is known of these problems first")
    tune.add_argument(
        "--export", type=arguments.new_file, metavar="FILE", help="write the winners as rows of text, as they ship"
    )
    tune.add_argument(
        "--import",
        dest="imported",
        type=Path,
        metavar="FILE",
        help="instead of what: the rows of a file of clgraft report or --export. Each is checked and timed here; it "
        "stays where it is the fastest",
    )
    tune.add_argument("--json", action="store_true", help="print JSON, and progress on stderr")
    tune.set_defaults(run=run, refuse=tune.error)


def run(options: argparse.Namespace) -> int:
    """Search what the user asked for; return the exit status."""
    from clgraft.core.runtime import devices

    if bool(options.what) == (options.imported is not None):
        options.refuse("expected either what to tune or --import FILE")
    device = devices.describe(devices.select(options.device))  # a wrong one is said before anything runs
    output = sys.stderr if options.json else sys.stdout
    taken = None if options.imported is None else _imported(options, device, output)
    reading = wanted.Options(
        directions="forward" if options.forward else "all",
        batch=options.batch,
        shapes=dict(options.shape),
        device=options.device,
        regions=options.regions,
    )
    problems = wanted.problems(options.what, reading) if taken is None else taken.problems
    if options.budget is not None:
        problems = budget.ordered(problems)
        print(budget.forecast(problems, options.budget, options.seconds), file=output, flush=True)
    effort = supervise.Effort(seconds=options.seconds, budget=options.budget)
    with Report(problems, output, partly=taken is not None) as report:
        only = None if taken is None else taken.choices
        for event in supervise.search(problems, effort, options.device, options.again, only):
            report.take(event)
    report.finish(_place())
    if options.export is not None:
        export(options.export, report)
    if options.json:
        print(json.dumps(report.as_record(), indent=2))
    if report.failed or report.not_kept or (taken is not None and taken.refused):
        return 1
    return UNFINISHED if report.left else 0


def _imported(options: argparse.Namespace, device: DeviceInfo, output: TextIO) -> imported.Imported:
    """Return the rows of the file that the user imports; say which of them are refused."""
    asked.refuse_options_of_models("tune", shape=options.shape, regions=options.regions)
    found = imported.read(options.imported, device)
    for line in imported.refusals(found):
        print(line, file=output)
    if not found.choices:
        raise supervise.TuneError(f"[tune] got no row in {options.imported} that can be used")
    return found


def _place() -> str:
    folder = folders.cache_folder()
    return str(folder / FILE) if folder else "nowhere: there is no cache folder"
