"""Gathers a device's report: every part by the functions of the command that makes it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from clgraft.core.errors import ClgraftError
from clgraft.core.planning.choice import HEURISTIC
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import Problem
from clgraft.core.tuning.database import Database
from clgraft.core.tuning.identity import device_class, device_key
from clgraft.plugins.command_line import terminal
from clgraft.plugins.command_line.bench import command as bench
from clgraft.plugins.command_line.bench import peers
from clgraft.plugins.command_line.bench.cases import Case, cases
from clgraft.plugins.command_line.bench.results import Results
from clgraft.plugins.command_line.check import command as check
from clgraft.plugins.command_line.check import runner
from clgraft.plugins.command_line.check.report import CheckReport
from clgraft.plugins.command_line.report.device_report import Checked, DeviceReport
from clgraft.plugins.command_line.tune import supervise
from clgraft.plugins.command_line.tune.report import Report as TuneReport

PROBLEMS = {
    "classic": ("3x3-64-56", "3x3-256-14", "3x3-s2-128-56", "1x1-256-64-56", "1x1-256-1024-14", "7x7-s2-3-64-224"),
    "depthwise": ("3x3-144-56",),
    "norms": ("64-56",),
    "poolings": ("max-3x3-s2-64-112",),
    "elements": ("relu-64-56",),
}
NETS = ("resnet18", "squeezenet")  # of each peer the first that it has
ROW_SECONDS = 0.2  # of a row of a problem; a net's takes 20 times as long
BUSY = 0.5  # of all cores: the load above which a note says so
CHECK_SHARE = 0.4  # of all the time


def gather(device: DeviceInfo, options: argparse.Namespace, command: str) -> DeviceReport:
    """Gather the report of a device.

    Parameters
    ----------
    device : DeviceInfo
    options : argparse.Namespace
        ``device`` (a selector or None), ``peers``, ``seconds``: of everything but the search, ``tune``: of the search,
        or None.
    command : str
        What the report says that it was made by.
    """
    begin, load = time.monotonic(), os.getloadavg()[0]
    checked = check_operators(device, options.device, begin + CHECK_SHARE * options.seconds)
    measured = measure(options, begin + options.seconds)
    measured.command, measured.note = command, busy(load, measured.threads)
    if options.tune is not None:
        search(options.device, options.tune)
    return DeviceReport(dataclasses.asdict(device), checked, tuned(device), measured)


def busy(load: float, cores: int) -> str:
    """Return a note if other work than the report's, which the load before it shows, disturbs the figures."""
    if load < BUSY * cores:
        return ""
    text = f"other work disturbed the figures: a load of {load:.1f} on {cores} cores before it began"
    print(f"clgraft: {text}", file=sys.stderr, flush=True)
    return text


def check_operators(device: DeviceInfo, selector: str | None, until: float) -> Checked:
    """Check the operators as `clgraft check` does, as far as the time allows."""
    found, total, ended, begin = CheckReport(str(device)), list[int](), "", time.monotonic()
    print(f"checking the operators on {device}", flush=True)
    with terminal.Progress(sys.stdout) as progress:
        try:
            for row in runner.run(check.OPERATORS, {"repeats": 0}, selector, total.append):
                found.rows.append(row)
                done = len({one.name for one in found.rows})
                progress.show(f"{len(found.failed)} failed, {row.name}", done, total[0] if total else None)
                if not row.passed:
                    progress.print(str(row))
                if time.monotonic() > until and done < sum(total):
                    ended = f"stopped after {time.monotonic() - begin:.0f} s, with {done} of {sum(total)} problems"
                    break
        except ClgraftError as error:
            ended = str(error)
    checked = Checked.summary(found, sum(total), time.monotonic() - begin, ended)
    print(checked, flush=True)
    return checked


def measure(options: argparse.Namespace, until: float) -> Results:
    """Measure the ten problems and a net as `clgraft bench` does, as far as the time allows."""
    wanted = argparse.Namespace(
        sets=[],
        nets=list(nets(options.peers)),
        peers=options.peers,
        device=options.device,
        batch=None,
        only="",
        directions=None,
        seconds=ROW_SECONDS,
    )
    return bench.measure(wanted, problems(), until)


def problems() -> list[Case]:
    """Return the problems that every report has."""
    return [case for name, labels in PROBLEMS.items() for case in cases([name]) if case.name in labels]


def nets(names: Sequence[str] | None) -> Iterator[str]:
    """Yield a net of each peer that can measure one."""
    known = peers.known()
    for peer in (known[name] for name in peers.available(names)):
        if peer.nets and not peers.lacks(peer):
            yield next((net for net in NETS if net in peer.nets), peer.nets[0])


def search(selector: str | None, seconds: float) -> None:
    """Search the ten problems as `clgraft tune` does; the results go to the user's database."""
    works = [case.work for case in problems()]
    texts = [str(work) for work in works if isinstance(work, Problem)]
    effort = supervise.Effort(seconds=max(seconds / len(texts), 1.0), budget=seconds)
    with TuneReport(texts, sys.stdout) as report:
        for event in supervise.search(texts, effort, selector):
            report.take(event)


def tuned(device: DeviceInfo) -> dict[str, Any]:
    """Return the user's tuned rows for a device, as `clgraft tune --import` takes them."""
    rows = [
        {
            "problem": winner.problem,
            "choice": str(winner.choice),
            "before": winner.before.median,
            "after": winner.after.median,
        }
        for winner in Database(device_key(device)).winners()
        if winner.choice != HEURISTIC
    ]
    return {"device": f"{device_class(device)} units{device.compute_units}", "rows": rows}
