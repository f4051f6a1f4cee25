"""A device's report as Markdown: the file that `clgraft report` writes, and the sections of the site's page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clgraft.plugins.command_line import terminal
from clgraft.plugins.command_line.bench.cases import DIRECTIONS
from clgraft.plugins.command_line.bench.report import DISTURBED
from clgraft.plugins.command_line.bench.results import NO_PEER, STEADY, Measurement
from clgraft.plugins.command_line.report.device_report import DeviceReport

WIDTH = 120
HEADING = "clgraft report"  # how the first line of a file of ours begins
EXPLAINED = (
    "Milliseconds of clgraft / of the peer, how many times as fast clgraft is, and the share of the floor, which is the"
    " time that the device's measured peaks allow. `*`: other work on the machine disturbed the measurement."
)
# what has a line of its own, or says nothing about the device
_SHOWN = {
    *("name", "platform", "driver", "version", "selector", "is_cpu", "is_gpu", "compute_units", "vector_width"),
    *("global_memory", "local_memory", "max_work_group_size", "has_fp64", "has_fp16", "device_class"),
}


def markdown(report: DeviceReport) -> str:
    """Return the Markdown of one device's report."""
    title = f"# {HEADING}: {title_of(report)}"
    return "\n".join([title, "", *lines(report, "##"), ""])


def title_of(report: DeviceReport) -> str:
    """Return a device's name with its platform's."""
    found = report.capabilities
    return f"{found['name']}, {found['platform']}"


def lines(report: DeviceReport, level: str) -> Iterator[str]:
    """Yield the lines of a report without its title; `level` is that of its headings."""
    for name, text in facts(report):
        yield from wrapped(f"* **{name}**: {text}")
    for row in report.check.failed:
        yield from wrapped(f"  * failed: `{row}`", "    ")
    yield from ["", *wrapped(EXPLAINED, ""), ""]
    yield from problems(report.bench.rows)
    yield from nets(report.bench.rows)
    rows = report.tuned["rows"]
    if rows:
        yield from ["", f"{level} Tuned rows", "", f"For devices with the words `{report.tuned['device']}`:", ""]
        yield from (f"    {tuned(row)}" for row in rows)


def facts(report: DeviceReport) -> Iterator[tuple[str, str]]:
    """Yield what is said in words: a name and a text."""
    found, bench = report.capabilities, report.bench
    versions = [f"{name} {version}" for name, version in bench.versions.items()]
    peers = [f"{version} with {bench.threads_of(peer)}" for peer, version in bench.peers.items()]
    yield "device", f"{found['name']}, {found['device_class']}, {found['compute_units']} compute units"
    yield "driver", f"{found['platform']} {found['driver']}, {found['version']}"
    yield "machine", "; ".join([f"{bench.processor or 'processor not recorded'}, {bench.cores}", bench.date, *versions])
    half = "float16" if found["has_fp16"] else "float16 (stored)"
    yield "types", ", ".join(["float32", half, *(["float64"] if found["has_fp64"] else [])])
    sizes = (terminal.nbytes(found["global_memory"]), terminal.nbytes(found["local_memory"]))
    yield "memory", f"{sizes[0]}, {sizes[1]} local; work-groups up to {found['max_work_group_size']}"
    yield "capabilities", "; ".join(_capabilities(found))
    drift = f", changed by {bench.drift:.0%} during the run" if bench.drift > STEADY else ""
    yield "peaks", f"{bench.peaks}{drift}"
    yield "check", str(report.check)
    if peers:
        yield "compared with", "; ".join(peers)
    yield "made by", f"`{bench.command}`" + (f"; {bench.note}" if bench.note else "")


def _capabilities(found: dict[str, Any]) -> Iterator[str]:
    yield f"vectors of {found['vector_width']} floats"
    for name, value in found.items():
        if name in _SHOWN or not value:
            continue
        words = name.replace("_", " ")
        yield words if value is True else f"{words} {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def problems(rows: Sequence[Measurement]) -> Iterator[str]:
    """Yield a table of single problems, a row for each and each peer."""
    found = [row for row in rows if row.set != "nets"]
    if not found:
        return
    yield from _table(["problem", "compared with", *DIRECTIONS], _cells(found, DIRECTIONS))


def nets(rows: Sequence[Measurement]) -> Iterator[str]:
    """Yield a table of whole nets."""
    found = [row for row in rows if row.set == "nets"]
    if not found:
        return
    ways = list(dict.fromkeys(row.direction for row in found))
    yield from ["", *_table(["net", "compared with", *ways], _cells(found, ways))]


def _cells(rows: Sequence[Measurement], ways: Sequence[str]) -> Iterator[list[str]]:
    for key in dict.fromkeys((row.set, row.name, row.peer) for row in rows):
        own = {row.direction: row for row in rows if (row.set, row.name, row.peer) == key}
        name = key[1] if key[0] == "nets" else f"{key[0]} {key[1]}"
        peer = "-" if key[2] == NO_PEER else key[2]
        yield [name, peer, *(figures(own[way]) if way in own else "-" for way in ways)]


def figures(row: Measurement) -> str:
    """Return the figures of a row: the fastest of ours, the peer's, the ratio, the share of the floor."""
    ours = min(filter(None, (row.ours, row.regions, row.frozen)))
    text = f"{1e3 * ours:.3g}"
    if row.native:
        text += f" / {1e3 * row.native:.3g}: {row.native / ours:.2f}"
    text += "*" * (max(row.native_spread, row.ours_spread) > DISTURBED)
    return text + (f", {row.share:.0%}" if row.share else "")


def tuned(row: dict[str, Any]) -> str:
    """Return a tuned row as text."""
    return f"{row['problem']} -> {row['choice']}"


def overview(reports: Iterable[DeviceReport]) -> list[str]:
    """Return a table of devices: what each is, its peaks and its check."""
    rows = []
    for one in reports:
        found = one.capabilities
        check = f"{one.check.passed} of {one.check.rows}" + ("*" if one.check.ended else "")
        gflops = one.bench.peak_flops / 1e9
        peaks = f"{gflops:.{0 if gflops >= 10 else 2}f}, {one.bench.peak_bandwidth / 1e9:.1f}"
        rows.append([found["name"], found["platform"], found["driver"], peaks, check])
    return list(_table(["device", "platform", "driver", "GFLOPS, GB/s", "rows that pass"], rows))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Return an entry of a list, or with no indent a paragraph, as lines."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
