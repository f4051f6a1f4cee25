"""The command `clgraft bench`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.errors import hint
from clgraft.core.planning.floor import Peaks
from clgraft.plugins import registry
from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.command_line.bench import peer_process, peers, report
from clgraft.plugins.command_line.bench.cases import Case
from clgraft.plugins.command_line.bench.results import Measurement, Results, command_line
from clgraft.plugins.plugin import Peer, PluginError

DIRECTIONS = ("inference", "training")
SETS = ("classic", "depthwise", "norms", "poolings", "elements")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    known = peers.known()
    nets = "; ".join(f"{peer.name}: {', '.join(peer.nets)}" for peer in known.values() if peer.nets)
    bench = commands.add_parser(
        "bench",
        help="measure the operators, or whole nets, against the frameworks' own",
        description="Measure against every framework that is installed, each in a process of its own with the faster "
        "of its default number of threads and all processors, both sides in turn. Sets hold "
        "problems of common networks: alexnet, classic, depthwise, elements, mobilenet, norms, poolings, resnet50, "
        f"vgg16 (default: {' '.join(SETS)}); unseen those that no tuned row names, channels_last some of classic and "
        "poolings with layout=nhwc. Above 1 ours is faster.",
    )
    bench.add_argument(
        "sets",
        nargs="*",
        metavar="SET",
        help="sets of problems, or problems: their text, lines "
        "of CLGRAFT_VERBOSE, a file of either, - for stdin; none with --nets alone",
    )
    bench.add_argument(
        "--peers", type=arguments.words, metavar="P,P", help=f"of {', '.join(known)} (default: all that are installed)"
    )
    bench.add_argument("--device", metavar="SELECTOR", help=arguments.DEVICE_HELP)
    bench.add_argument("--nets", type=arguments.words, metavar="N,N", help=f"whole nets ({nets})")
    bench.add_argument(
        "--directions",
        type=arguments.words,
        metavar="D,D",
        help=f"of nets: {', '.join(DIRECTIONS)} (default: all)",
    )
    bench.add_argument("--only", default="", metavar="TEXT", help="part of the names of the wanted cases")
    bench.add_argument(
        "--batch",
        type=arguments.counts,
        metavar="N,N",
        help="batch sizes instead of the sets' own; of nets (default: 8)",
    )
    bench.add_argument(
        "--precision",
        choices=settings.PRECISIONS,
        help="as CLGRAFT_PRECISION: with float16 and bfloat16 nets compute products in 16 bits, those of peers that "
        "have it in the faster of that type and float32",
    )
    bench.add_argument(
        "--seconds", type=arguments.seconds, default=1.0, metavar="S", help="for each row (default: 1; nets 20 times)"
    )
    bench.add_argument(
        "--threads",
        type=arguments.counts,
        metavar="N,N",
        help="measure on so many cores, each number in a process of its own, and say what both sides gain",
    )
    bench.add_argument(
        "--json",
        type=arguments.new_file,
        metavar="FILE",
        help="keep all figures; with --threads in FILE-N",
    )
    bench.add_argument(
        "--append", action="store_true", help="keep the rows that FILE of --json has: nets may be measured one by one"
    )
    bench.add_argument(
        "--plots",
        type=arguments.new_folder,
        metavar="FOLDER",
        help="draw a roofline, the ratios, the gain from cores",
    )
    bench.add_argument("--table", type=arguments.new_file, metavar="FILE", help="write the table as Markdown")
    bench.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="measure nothing: table and plots of kept figures",
    )
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, or read what was measured, and write what was asked for."""
    from clgraft.core.runtime import devices
    from clgraft.plugins.command_line.bench import plots, threads

    if options.precision:
        os.environ[settings.PRECISION.name] = options.precision
    if options.earlier:
        runs = [Results.read(path) for path in options.earlier]
        for one in runs:
            report.print_sums(one, sys.stdout)
    elif options.threads:
        devices.select(options.device)  # a wrong one is said before the processes start
        runs = []
        for one in threads.measure(options):
            runs.append(one)
            if options.json:
                path = options.json.with_name(f"{options.json.stem}-{one.threads}{options.json.suffix}")
                path.write_text(one.to_json())
    else:
        runs = [measure(options)]
        if options.json:
            append = options.append and options.json.exists()
            kept = Results.read(options.json).joined(runs[0]) if append else runs[0]
            options.json.write_text(kept.to_json())
    print(*threads.lines(runs), sep="\n", end="")
    if options.table:
        options.table.write_text(report.markdown(runs))
    if options.plots:
        for i, one in enumerate(runs):
            for path in plots.draw(one, options.plots / str(i) if len(runs) > 1 else options.plots):
                print(path)
        gain = threads.speeds(runs) if len({one.threads for one in runs}) > 1 else {}
        if gain:
            print(plots.draw_gain(gain, options.plots))
    return 0 if all(one.rows for one in runs) else 1


def measure(options: argparse.Namespace, given: Sequence[Case] = (), until: float = math.inf) -> Results:
    """Measure what options name and print a line for each row.

    Parameters
    ----------
    options : argparse.Namespace
        As `run` has them: ``sets``, ``nets``, ``directions``, ``peers``, ``device``, ``batch``, ``only`` and
        ``seconds``.
    given : sequence of Case
        Cases to measure besides those that `options` names.
    until : float
        When to stop, in the seconds of `time.monotonic`: what is left then is not measured, and a line says so.
    """
    from clgraft import core
    from clgraft.plugins.command_line.bench import machine, peaks
    from clgraft.plugins.command_line.bench.named import LoneCase, named

    names = peers.available(options.peers)
    batches = options.batch or [None]
    wanted = list(options.sets) or ([] if options.nets or given else list(SETS))
    work = [*given, *(case for batch in batches for case in named(wanted, batch, options.only))]
    if wanted and not work:
        raise PluginError(f"[bench] got --only {options.only}, expected a part of the name of a case of {wanted}")
    known = peers.known()
    nets = _nets(names, options.nets or ())
    context = core.context(options.device)
    results = machine.record(context, command_line())
    found = results.peaks
    print(f"on {context.device}\npeaks: {found}\n{report.EXPLAINED}\n{report.HEADER}", flush=True)
    shared = [case for case in work if not isinstance(case, LoneCase)]
    jobs = []
    for name in names:
        own = [(net, batch) for net in nets[name] for batch in options.batch or [8]]
        if shared or own:
            jobs.append((name, shared, own))
    total = sum(len(cases) + len(own) for _, cases, own in jobs) + len(work) - len(shared)
    served: set[str] = set()
    with terminal.Progress(sys.stdout, total, still=True) as progress:
        run = _Run(options, results, found, progress, until)
        for name, cases, own in jobs:
            served |= run.against(known[name], cases, own)
        run.alone([case for case in work if case.text not in served])
    results.drift = found.change(peaks.measure(context))
    report.print_sums(results, sys.stdout)
    return results


def _nets(names: Sequence[str], wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return which of the wanted nets each peer measures; say where one cannot because a package is missing.

    Raises
    ------
    PluginError
        If no peer has one of them.
    """
    known = peers.known()
    lacking = {name: package for name in names if (package := peers.lacks(known[name]))}
    reasons = [f"those of {name} need {package}, which is not installed" for name, package in lacking.items()]
    here = {name: known[name].nets if name not in lacking else () for name in names}
    every = {net for nets in here.values() for net in nets}
    unknown = sorted(set(wanted) - every)
    if unknown:
        expected = f"some of {sorted(every)}, nets of the peers {names}{hint(unknown[0], every)}"
        said = "; ".join([f"got nets {unknown}, expected {expected}", *reasons])
        raise PluginError(f"[bench] {said}")
    if wanted:
        for reason in reasons:
            print(f"not measured: nets: {reason}", file=sys.stderr, flush=True)
    return {name: [net for net in wanted if net in nets] for name, nets in here.items()}


class _Run:
    """Starts the processes of peers, one after the other, and prints and keeps what they send."""

    def __init__(
        self,
        options: argparse.Namespace,
        results: Results,
        found: Peaks,
        progress: terminal.Progress,
        until: float,
    ) -> None:
        self.seconds, self.results, self.peaks, self.progress = options.seconds, results, found, progress
        self.directions = options.directions or ()
        self.environment = registry.environment(options.device)
        self.done, self.until = 0, until

    def against(self, peer: Peer, cases: Sequence[Case], nets: Sequence[tuple[str, int]]) -> set[str]:
        """Measure cases and nets against a peer with its best number of threads; return the cases that it has."""
        if self._over(peer.name):
            return set()
        self.progress.show(f"threads of {peer.name}", self.done)
        choice = peer_process.best(peer.name, self.environment)
        job = peer_process.job(peer.name, cases, nets, self.seconds, self.peaks, self.directions)
        unserved = set()
        for message in peer_process.messages(job, {**self.environment, **choice.environment}):
            if "peer" in message:
                facts = message["peer"]
                self.results.peers[peer.name] = facts["version"]
                self.results.modes[peer.name] = facts["mode"]
                threads = self.results.peer_threads[peer.name] = choice.threads(facts["threads"])
                self.progress.print(f"{facts['version']}: {threads}")
            elif "unserved" in message:
                unserved.add(cases[message["unserved"]].text)
            self._take(message)
            if "row" in message and self._over(peer.name):
                break
        return {case.text for case in cases} - unserved

    def alone(self, cases: Sequence[Case]) -> None:
        """Measure cases that no peer has."""
        if cases and not self._over("clgraft alone"):
            for message in peer_process.messages(
                peer_process.job("", cases, (), self.seconds, self.peaks), self.environment
            ):
                self._take(message)
                if "row" in message and self._over("clgraft alone"):
                    break

    def _over(self, what: str) -> bool:
        """Return whether the time is over, and say so."""
        over = time.monotonic() > self.until
        if over:
            print(f"not measured: what is left of {what}: the time is over", file=sys.stderr, flush=True)
        return over

    def _take(self, message: Mapping[str, Any]) -> None:
        if "doing" in message:
            self.progress.show(message["doing"], self.done)
            self.done += 1
            if " batch " in message["doing"] and not self.progress.drawn:  # a net takes minutes: say what happens
                print(f"measuring {message['doing']}", file=sys.stderr, flush=True)
        elif "row" in message:
            row = Measurement(**message["row"])
            self.results.rows.append(row)
            self.progress.print(report.line(row))
        elif "missing" in message:
            print(f"not measured: {message['missing']}", file=sys.stderr, flush=True)
