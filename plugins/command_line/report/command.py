"""The command `clgraft report`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from clgraft.core.files import write_whole
from clgraft.plugins.command_line import arguments
from clgraft.plugins.plugin import PluginError

NAME = "clgraft-report"
SECONDS = 150.0


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    report = commands.add_parser(
        "report",
        help="write a file about your device: what it is, what it can do, and how fast it is",
        description="Check the operators on your device, measure its peaks, ten problems and a net against what is "
        "installed, and write it all as Markdown and as JSON, with the driver, the versions and your tuned rows. It "
        "takes up to three minutes. Look at the files, then send them in if you like: clgraft tune --import takes the "
        "rows.",
    )
    report.add_argument(
        "-o",
        "--output",
        type=arguments.new_file,
        default=Path(NAME),
        metavar="FILE",
        help=f"writes FILE.md and FILE.json (default: {NAME})",
    )
    report.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    report.add_argument(
        "--peers", type=arguments.words, metavar="P,P", help="measure against these (default: all that are installed)"
    )
    report.add_argument(
        "--seconds",
        type=arguments.seconds,
        default=SECONDS,
        metavar="S",
        help=f"stop checking and measuring after so long (default: {SECONDS:g})",
    )
    report.add_argument(
        "--tune", type=arguments.seconds, metavar="S", help="also search faster settings for the problems, for so long"
    )
    report.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Gather the report and write both files."""
    from clgraft.core.runtime import devices
    from clgraft.plugins.command_line.bench import peers
    from clgraft.plugins.command_line.report import gather, page

    targets = {suffix: _target(options.output, suffix) for suffix in (".md", ".json")}
    expect_ours(targets[".md"], f"# {page.HEADING}")
    expect_ours(targets[".json"], '{\n"report":')
    device = devices.describe(devices.select(options.device))
    peers.available(options.peers)  # what is wrong is said at once
    report = gather.gather(device, options, command_line(options))
    for suffix, text in ((".md", page.markdown(report)), (".json", report.to_json())):
        write_whole(targets[suffix], text.encode(), 0o644)
        print(f"wrote {targets[suffix]}")
    return 1 if report.check.failed else 0


def _target(output: Path, suffix: str) -> Path:
    stem = output.with_suffix("") if output.suffix in (".md", ".json") else output
    return stem.with_name(stem.name + suffix)


def expect_ours(path: Path, beginning: str) -> None:
    """Raise `PluginError` if there is a file that this command has not written."""
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = file.read(len(beginning)) == beginning
    except OSError as error:
        raise PluginError(f"[report] got {path} to write to, which cannot be read: {error.strerror}") from None
    if not ours:
        raise PluginError(f"[report] got {path} to write to, which clgraft report has not written; expected a new file")


def command_line(options: argparse.Namespace) -> str:
    """Return the command that makes such a report, without names of files."""
    words = ["clgraft", "report"]
    for name in ("device", "peers", "seconds", "tune"):
        value = getattr(options, name)
        if value is not None and (name, value) != ("seconds", SECONDS):
            words.append(f"--{name}={','.join(value) if isinstance(value, list) else value}")
    return shlex.join(words)
