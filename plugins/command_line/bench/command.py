"""The command `clgraft bench`."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from pathlib import Path

from clgraft.plugins.command_line import arguments, terminal
from clgraft.plugins.command_line.bench import peers
from clgraft.plugins.command_line.bench.results import Results, command_line
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
    bench.add_argument("--nets", type=arguments.words, metavar="N,N", help=f"whole nets ({nets})")
    bench.add_argument("--only", default="", metavar="TEXT", help="part of the names of the wanted cases")
    bench.add_argument(
        "--batch",
        type=arguments.counts,
        metavar="N,N",
        help="batch sizes instead of the sets' own; of nets (default: 8)",
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
    from clgraft.plugins.command_line.bench import plots, report, threads

    if options.earlier:
        runs = [Results.read(path) for path in options.earlier]
        for one in runs:
            report.print_sums(one, sys.stdout)
    elif options.threads:
        runs = []
        for one in threads.measure(options):
            runs.append(one)
            if options.json:
                path = options.json.with_name(f"{options.json.stem}-{one.threads}{options.json.suffix}")
                path.write_text(one.to_json())
    else:
        runs = [_measure(options)]
        if options.json:
            options.json.write_text(runs[0].to_json())
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


def _processor() -> str:
    """Return the name of the machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _measure(options: argparse.Namespace) -> Results:
    from clgraft import core
    from clgraft.plugins.command_line.bench import operators, peaks, report
    from clgraft.plugins.command_line.bench.named import named

    names = peers.available(options.peers)
    batches = options.batch or [None]
    wanted = list(options.sets) or ([] if options.nets else list(SETS))
    work = [case for batch in batches for case in named(wanted, batch, options.only)]
    if wanted and not work:
        raise PluginError(f"[bench] got --only {options.only}, expected a part of the name of a case of {wanted}")
    nets = {net for name in names for net in peers.known()[name].nets}
    unknown = sorted(set(options.nets or ()) - nets)
    if unknown:
        raise PluginError(f"[bench] got nets {unknown}, expected some of {sorted(nets)}, nets of the peers {names}")
    device = str(core.context().device)
    found = peaks.here()
    results = Results(
        device,
        command_line(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        found.flops,
        found.bandwidth,
        {name: peers.describe(name) for name in names},
        processor=_processor(),
        modes={name: peers.mode(name) for name in names},
    )
    print(f"on {device}\npeaks: {found}\n{report.EXPLAINED}\n{report.HEADER}", flush=True)
    total = operators.pairs(work, names)
    with terminal.Progress(sys.stdout, total, still=True) as progress:
        for row in operators.measure(work, names, options.seconds, progress.show):
            if isinstance(row, str):
                print(f"not measured: {row}", file=sys.stderr, flush=True)
                continue
            results.rows.append(row)
            progress.print(report.line(row))
        if options.nets:
            _measure_nets(options, names, results, progress)
    report.print_sums(results, sys.stdout)
    return results


def _measure_nets(options: argparse.Namespace, names: list[str], results: Results, progress: terminal.Progress) -> None:
    import importlib

    from clgraft.plugins.command_line.bench import report

    batches = options.batch or [8]
    known = peers.known()
    work = [
        (known[name], net, batch)
        for name in names
        for net in options.nets
        if net in known[name].nets
        for batch in batches
    ]
    for done, (peer, net, batch) in enumerate(work):
        what = f"{net} batch {batch} against {peer.name}"
        progress.show(what, done, len(work))
        if not progress.drawn:  # a net takes minutes: say what happens
            print(f"measuring {what} ({done + 1} of {len(work)})", file=sys.stderr, flush=True)
        for row in importlib.import_module(peer.nets_module).measure([net], [batch], 20 * options.seconds):
            results.rows.append(row)
            progress.print(report.line(row))
