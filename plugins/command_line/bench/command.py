"""The command `clgraft bench`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from clgraft.plugins.command_line.bench import peers
from clgraft.plugins.command_line.bench.results import Results
from clgraft.plugins.plugin import PluginError

SETS = ("classic", "depthwise", "norms", "poolings", "elements")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    known = peers.known()
    nets = "; ".join(f"{peer.name}: {', '.join(peer.nets)}" for peer in known.values() if peer.nets)
    bench = commands.add_parser(
        "bench",
        help="measure the operators, or whole nets, against the frameworks' own",
        description="Measure against every framework that is installed, both sides in this process, in turn. Sets hold "
        "problems of common networks: alexnet, classic, depthwise, elements, mobilenet, norms, poolings, resnet50, "
        f"vgg16 (default: {' '.join(SETS)}). Above 1 ours is faster.",
    )
    bench.add_argument("sets", nargs="*", metavar="SET", help="sets of problems; none with --nets alone")
    bench.add_argument("--peers", metavar="P,P", help=f"of {', '.join(known)} (default: all that are installed)")
    bench.add_argument("--nets", metavar="N,N", help=f"whole nets ({nets})")
    bench.add_argument("--only", default="", metavar="TEXT", help="part of the names of the wanted cases")
    bench.add_argument("--batch", metavar="N,N", help="batch sizes instead of the sets' own; of nets (default: 8)")
    bench.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="for each row (default: 1; nets 20 times)"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="keep all figures")
    bench.add_argument("--plots", type=Path, metavar="FOLDER", help="draw a roofline and the ratios")
    bench.add_argument("--table", type=Path, metavar="FILE", help="write the table as Markdown")
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
    from clgraft.plugins.command_line.bench import plots, report

    if options.earlier:
        runs = [Results.read(path) for path in options.earlier]
        for one in runs:
            print(report.sums(one.rows))
    else:
        runs = [_measure(options)]
        if options.json:
            options.json.write_text(runs[0].to_json())
    if options.table:
        options.table.write_text(report.markdown(runs))
    if options.plots:
        for i, one in enumerate(runs):
            for path in plots.draw(one, options.plots / str(i) if len(runs) > 1 else options.plots):
                print(path)
    return 0 if all(one.rows for one in runs) else 1


def _measure(options: argparse.Namespace) -> Results:
    from clgraft import core
    from clgraft.plugins.command_line.bench import cases, operators, peaks, report

    names = peers.available(options.peers.split(",") if options.peers else None)
    batches = [int(word) for word in options.batch.split(",")] if options.batch else [None]
    wanted = list(options.sets) or ([] if options.nets else list(SETS))
    work = [case for batch in batches for case in cases.cases(wanted, batch, options.only)]
    device = str(core.context().device)
    found = peaks.measure()
    results = Results(
        device,
        "clgraft bench " + shlex.join(sys.argv[2:]),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        found.flops,
        found.bandwidth,
        {name: peers.describe(name) for name in names},
    )
    print(f"on {device}\npeaks: {found}\n{report.HEADER}", flush=True)
    for row in operators.measure(work, names, options.seconds):
        if isinstance(row, str):
            print(f"not measured: {row}", file=sys.stderr, flush=True)
            continue
        results.rows.append(row)
        print(report.line(row, found), flush=True)
    if options.nets:
        _measure_nets(options, names, results, found)
    print(report.sums(results.rows))
    return results


def _measure_nets(options: argparse.Namespace, names: list[str], results: Results, found: object) -> None:
    import importlib

    from clgraft.plugins.command_line.bench import report

    batches = [int(word) for word in options.batch.split(",")] if options.batch else [8]
    wanted = options.nets.split(",")
    served = set()
    for peer in (peers.known()[name] for name in names):
        nets = [name for name in wanted if name in peer.nets]
        if not nets:
            continue
        served |= set(nets)
        for row in importlib.import_module(peer.nets_module).measure(nets, batches, 20 * options.seconds):
            results.rows.append(row)
            print(report.line(row, found), flush=True)  # type: ignore[arg-type]
    if set(wanted) - served:
        raise PluginError(f"[bench] got nets {sorted(set(wanted) - served)}, expected nets of the peers {names}")
