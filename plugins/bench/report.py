"""Results as text: rows while they come, sums by group, and the Markdown table of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clgraft.plugins.bench.cases import GROUPS
from clgraft.plugins.bench.peaks import Peaks
from clgraft.plugins.bench.results import Results, Row, summaries

HEADER = (
    f"{'set':10} {'case':26} {'':9} {'peer':6} {'native ms':>10} {'ours ms':>9} {'ratio':>6} "
    f"{'GFLOPS':>7} {'GB/s':>6} {'of floor':>8}"
)


def line(row: Row, peaks: Peaks) -> str:
    """Give a row; `of floor` is the least time that operations and bytes allow over ours."""
    text = (
        f"{row.set:10} {row.name:26} {row.direction:9} {row.peer:6} {row.native * 1e3:10.3f} {row.ours * 1e3:9.3f} "
        f"{row.ratio:5.2f}x"
    )
    if row.nbytes:
        floor = peaks.floor(row.flops, row.nbytes) / row.ours
        text += f" {row.flops / row.ours / 1e9:7.0f} {row.nbytes / row.ours / 1e9:6.1f} {floor:8.0%}"
    return text


def sums(rows: Iterable[Row]) -> str:
    """Give the geometric mean and the worst of each group, direction and peer."""
    lines = []
    for (group, direction, peer), found in summaries(rows).items():
        lines.append(
            f"{GROUPS.get(group, 'whole nets'):32} {direction:9} against {peer:6} {found.mean:5.2f}x"
            f" of {found.count:2}, worst {found.worst:.2f}x ({found.worst_name})"
        )
    return "\n".join(lines)


def markdown(runs: Sequence[Results]) -> str:
    """Give the table of one or more runs: groups down, peers across, `forward / backward` in each cell."""
    parts = []
    for run in runs:
        found = summaries(run.rows)
        peers = [peer for peer in run.peers if any(key[2] == peer and key[0] in GROUPS for key in found)]
        parts += [f"### {run.device}", "", f"`{run.command}`", ""]
        parts += [
            f"{run.threads} cores; peaks in the same run: {Peaks(run.peak_flops, run.peak_bandwidth)}. "
            f"Peers: {', '.join(run.peers[peer] for peer in run.peers)}.",
            "",
        ]
        if peers:
            parts += ["| set | " + " | ".join(f"{peer}, forward / backward (worst)" for peer in peers) + " |"]
            parts += ["|" + "---|" * (1 + len(peers))]
            for group, title in GROUPS.items():
                cells = []
                for peer in peers:
                    both = [found.get((group, direction, peer)) for direction in ("forward", "backward")]
                    cells.append(
                        " / ".join("-" if one is None else f"{one.mean:.2f}x ({one.worst:.2f})" for one in both)
                    )
                if any(cell != "- / -" for cell in cells):
                    parts.append(f"| {title} | " + " | ".join(cells) + " |")
            parts.append("")
        nets = [row for row in run.rows if row.set == "nets"]
        if nets:
            parts += ["| whole net | | peer | native ms | ours ms | ratio |", "|---|---|---|---|---|---|"]
            parts += [
                f"| {row.name} | {row.direction} | {row.peer} | {row.native * 1e3:.1f} | {row.ours * 1e3:.1f} "
                f"| {row.ratio:.2f}x |"
                for row in nets
            ]
            parts.append("")
    return "\n".join(parts)
