"""Results as text: rows while they come, sums by group, and the Markdown table of `--table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from clgraft.plugins.command_line import terminal
from clgraft.plugins.command_line.bench import threads
from clgraft.plugins.command_line.bench.cases import DIRECTIONS, GROUPS
from clgraft.plugins.command_line.bench.results import NO_PEER, Measurement, Results, Summary, summaries
from clgraft.plugins.command_line.bench.timing import geometric_mean

HEADER = (
    f"{'set':13} {'case':26} {'':9} {'peer':6} {'native ms':>10} {'ours ms':>9} {'ratio':>6} "
    f"{'GFLOPS':>7} {'GB/s':>6} {'floor ms':>9} {'share':>6}"
)
EXPLAINED = (
    "GFLOPS count the operations of the direct method, GB/s every argument once. Floor: the time that the measured "
    "peaks allow for what clgraft ran, for each problem the longer of its operations (of the method that was chosen) "
    "and its bytes. Share: the floor over ours, above 100% where data stays in the cache, which is faster than the "
    "copy in memory that was measured. A sum's ratio at the floor is that of ours if it took this time"
)

DISTURBED = 0.5  # the spread above which a measurement is marked


def line(row: Measurement) -> str:
    """Return a row as text (see `EXPLAINED`)."""
    native, ratio = (f"{row.native * 1e3:.3f}", f"{row.ratio:.2f}x") if row.native else ("-", "-")
    text = f"{row.set:13} {row.name:26} {row.direction:9} {row.peer:6} {native:>10} {row.ours * 1e3:9.3f} {ratio:>6}"
    if row.nbytes:
        text += f" {row.flops / row.ours / 1e9:7.0f} {row.nbytes / row.ours / 1e9:6.1f}"
    elif row.floor:
        text += f" {'-':>7} {'-':>6}"
    if row.nbytes or row.floor:
        floor, share = (f"{row.floor * 1e3:.3f}", f"{row.floor / row.ours:.0%}") if row.floor else ("-", "-")
        text += f" {floor:>9} {share:>6}"
    if row.layout:
        text += f"  {row.layout}"
    for way, seconds in row.ways.items():
        if way != row.layout:
            text += f"  {way} {seconds * 1e3:9.3f} {seconds / row.ours:5.2f}x"
    for name, seconds, floor in (
        ("with regions", row.regions, row.regions_floor),
        ("frozen", row.frozen, row.frozen_floor),
        ("with its optimizer", row.updated, row.updated_floor),
    ):
        if seconds:
            text += f"  {name} {seconds * 1e3:9.3f} {row.native / seconds:5.2f}x" + _reached(seconds, floor)
    if row.uncounted:
        text += f"  {row.uncounted} operators not counted"
    disturbed = max(row.native_spread, row.ours_spread)
    return text + (f"  disturbed: spread {disturbed:.0%}" if disturbed > DISTURBED else "")


def _reached(seconds: float, floor: float) -> str:
    """Return a floor in milliseconds and the share of it that is reached; nothing where it is not known."""
    return f", floor {floor * 1e3:.3g} ms ({floor / seconds:.0%})" if floor else ""


def print_sums(run: Results, output: TextIO) -> None:
    """Print the sums and where they were measured: a table on a terminal, lines in a pipe."""
    rows = run.rows
    if rows:
        print(f"measured on {run.conditions()}", file=output)
    if not output.isatty():
        print(sums(rows), file=output)
        return
    cells = [
        [
            *(GROUPS.get(group, "whole nets"), direction, peer, f"{one.mean:.2f}x", str(one.count)),
            *(f"{one.worst:.2f}x", one.worst_name),
        ]
        for (group, direction, peer), one in summaries(rows).items()
    ]
    if cells:
        heads = ["group", "direction", "peer", "mean", "cases", "worst", "which"]
        terminal.table(heads, cells, output, 3 * [terminal.LEFT] + 3 * [terminal.RIGHT])


def sums(rows: Sequence[Measurement]) -> str:
    """Return the geometric mean and the worst of each group, direction and peer, and what the floor would allow."""
    lines = []
    for key, found in summaries(rows).items():
        group, direction, peer = key
        text = (
            f"{GROUPS.get(group, 'whole nets'):32} {direction:9} against {peer:6} {found.mean:5.2f}x"
            f" of {found.count:2}, worst {found.worst:.2f}x ({found.worst_name})"
        )
        if found.share:
            text += f"; {found.share:.0%} of the floor, {found.mean / found.share:.2f}x at the floor"
        lines.append(text)
    return "\n".join(lines)


def markdown(runs: Sequence[Results]) -> str:
    """Return the tables of one or more runs: what was measured where, the groups, the whole nets, the gain from cores.

    A cell of the groups is ``forward / backward (worst)``; a column stands for a peer and a runtime, and for a number
    of cores where the runs differ in it.
    """
    parts = ["| device | processor, cores | measured peaks | peers | command |", "|---|---|---|---|---|"]
    for run in runs:
        peers = ", ".join(f"{version}: {run.threads_of(peer)}" for peer, version in run.peers.items())
        parts.append(
            f"| {run.device} | {run.processor or '-'}, {run.threads} | {run.peaks} | {peers} | `{run.command}` |"
        )
    measured = [f"Measured on {text}." for text in dict.fromkeys(run.conditions() for run in runs)]
    layouts = _layouts(runs)
    found = (_groups(runs), _shares(runs), _nets(runs), threads.lines(runs))
    tables = [[*measured, *layouts, "", *table] for table in found if table]
    return "\n".join([*parts, "", *(line for table in tables for line in table)])


def _where(run: Results, runs: Sequence[Results]) -> str:
    """Return what tells a run from the others: its runtime, and its cores where they differ."""
    same = len({one.threads for one in runs}) == 1
    return run.runtime if same else f"{run.runtime}, {run.cores}"


def _layouts(runs: Sequence[Results]) -> list[str]:
    """Return a sentence for each peer of several layouts: in how many rows which of them was the faster."""
    counts: dict[str, Counter[str]] = {}
    for row in (row for run in runs for row in run.rows if row.layout and row.group in GROUPS):
        counts.setdefault(row.peer, Counter())[row.layout] += 1
    return [
        f"Each row takes the faster layout of {peer}: "
        + ", ".join(f"{n} in {c}" for n, c in sorted(found.items()))
        + "."
        for peer, found in counts.items()
    ]


def _groups(runs: Sequence[Results]) -> list[str]:
    columns: dict[tuple[str, str], dict[tuple[str, str], Summary]] = {}
    for run in runs:
        for (group, direction, peer), found in summaries(run.rows).items():
            if group in GROUPS:
                columns.setdefault((peer, _where(run, runs)), {})[group, direction] = found
    if not columns:
        return []
    order = sorted(columns, key=lambda column: [peer for run in runs for peer in run.peers].index(column[0]))
    heads = [f"{peer}: {runtime}" for peer, runtime in order]
    lines = ["| set | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for group, title in GROUPS.items():
        cells = []
        for column in order:
            both = [columns[column].get((group, direction)) for direction in ("forward", "backward")]
            worst = min((one.worst for one in both if one), default=0.0)
            text = " / ".join(f"{one.mean:.2f}x" if one else "-" for one in both)
            cells.append(f"{text} ({worst:.2f})" if worst else "-")
        if set(cells) != {"-"}:
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _shares(runs: Sequence[Results]) -> list[str]:
    """Return the table of the shares of the floor that operators reach: forward / backward (lowest)."""
    shares: dict[str, dict[tuple[str, str], list[float]]] = {}
    for run in runs:
        rows = {(row.group, row.name, row.direction): row for row in run.rows if row.group in GROUPS and row.floor}
        for (group, _, direction), row in rows.items():  # one for all peers
            shares.setdefault(_where(run, runs), {}).setdefault((group, direction), []).append(row.share)
    if not shares:
        return []
    lines = ["| share of the floor | " + " | ".join(shares) + " |", "|---" * (1 + len(shares)) + "|"]
    for group, title in GROUPS.items():
        cells = []
        for found in shares.values():
            both = [found.get((group, direction), []) for direction in DIRECTIONS]
            text = " / ".join(f"{geometric_mean(one):.0%}" if one else "-" for one in both)
            cells.append(f"{text} ({min([*both[0], *both[1]]):.0%})" if any(both) else "-")
        if set(cells) != {"-"}:
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _nets(runs: Sequence[Results]) -> list[str]:
    names = list(dict.fromkeys(_where(run, runs) for run in runs))
    found = {
        (row.peer, row.name, row.direction, _where(run, runs)): row
        for run in runs
        for row in run.rows
        if row.group not in GROUPS and row.peer != NO_PEER
    }
    if not found:
        return []
    heads = [head for name in names for head in (f"{name}: native, ours, ratio", f"{name}: with regions, ratio")]
    lines = ["| whole net | | peer | " + " | ".join(heads) + " |"]
    lines.append("|---" * (3 + 2 * len(names)) + "|")
    for peer, name, direction in dict.fromkeys(key[:3] for key in found):
        rows = [found.get((peer, name, direction, runtime)) for runtime in names]
        cells = [cell for row in rows for cell in _net_cells(row)]
        lines.append(f"| {name} | {direction} | {peer} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _net_cells(row: Measurement | None) -> tuple[str, str]:
    """Return the cells of a whole net: layer by layer, and with regions, with frozen parameters, with its optimizer."""
    if row is None:
        return "-", "-"
    native = f"{row.native * 1e3:.0f} ms" + f" ({row.layout})" * bool(row.layout)
    layers = f"{native}, {row.ours * 1e3:.0f} ms, {row.ratio:.2f}x" + _reached(row.ours, row.floor)
    layers += "".join(
        f"; {way} {seconds * 1e3:.0f} ms, {seconds / row.ours:.2f}x"
        for way, seconds in row.ways.items()
        if way != row.layout
    )
    sides = (
        *(("", row.regions, row.regions_floor), ("frozen ", row.frozen, row.frozen_floor)),
        ("with its optimizer ", row.updated, row.updated_floor),
    )
    found = [
        f"{name}{seconds * 1e3:.0f} ms, {row.native / seconds:.2f}x" + _reached(seconds, floor)
        for name, seconds, floor in sides
        if seconds
    ]
    return layers, "; ".join(found) or "-"
