"""Write the tables of the figures: `python benchmarks/report.py [benchmarks/results]`.

The pages are docs/performance.md, docs/graphs.md, docs/caffe.md, docs/mxnet.md, README.md, and the README.md of the
results, which says where each was measured. The first page of the site has a figure of the overview in
docs/performance.md, drawn by `figures.py`.

A page has marks, invisible comments that name a kind of table and files of results, and what stands between a mark and
the next `<!-- end -->` is written anew:

    <!-- figures: nets cpu-intel-mxnet-nets; made cpu-intel-mxnet-nets -->
    <!-- end -->

Each file was written by one command in one run, with `--json FILE`. The words after the kind are names of files without
`.json`, two that make one column with `+` between them, and a heading after `=`, in which `_` stands for a space. `*`
stands for all files. A mark may have several lines, and several kinds between `;`. `tests/test_report.py` checks that
the pages agree with the files.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from figures import bars

from clgraft.plugins.command_line.bench.cases import GROUPS
from clgraft.plugins.command_line.bench.results import NO_PEER, STEADY, Measurement, Results
from clgraft.plugins.command_line.bench.timing import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
PAGES = (
    DOCS / "performance.md",
    DOCS / "graphs.md",
    DOCS / "caffe.md",
    DOCS / "mxnet.md",
    ROOT / "README.md",
    RESULTS / "README.md",
)
FIGURE = DOCS / "figures" / "overview.svg"
MARK = re.compile(r"(<!-- figures: ([^>]+) -->)(.*?)(<!-- end -->)", re.S)
WIDTH = 120
FIRST = ("forward", "inference")  # of the directions in a cell
NONE = "-"
LISTED = 6  # problems that are slower and named
DISTURBED = 0.5  # the spread from which a net has a star, and a problem is left out
RUNTIMES = {"Intel(R) OpenCL": "Intel's runtime", "Portable Computing Language": "PoCL"}
PEERS = {
    **{"mxnet": "MXNet", "torch": "PyTorch", "caffe": "Caffe", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"},
    **{"torch_tf32": "PyTorch, TF32"},
    **{"regions": "regions", "frozen": "frozen regions", NO_PEER: "alone"},
}
SHORT = {  # headings of groups that fit a table of several columns
    **{"strided": "strided, large", "other": "dilated, grouped", "norm": "batch norm", "pooling": "pooling"},
    **{"3x3": "3x3", "1x1": "1x1", "depthwise": "depthwise", "element": "elementwise"},
}
# kinds of problems that are one row of a table of operators
JOINED = {
    **dict.fromkeys(("concat", "slice", "transpose", "pad", "repeat"), "copies"),
    **{
        "batchnorm": "norm",
        "pool": "pooling",
        "deconv": "upsampling",
        "interpolate": "upsampling",
        "pointwise": "element",
        "dropout": "element",
    },
}


@dataclass(frozen=True, eq=False)
class Run:
    """Results with the heading that a mark gives them."""

    name: str
    heading: str
    results: Results

    @property
    def where(self) -> str:
        """Return the device in words: a CPU's runtime, or a GPU's name."""
        return RUNTIMES.get(self.results.runtime, self.results.device.split(" / ", 1)[-1])


class Cell(NamedTuple):
    """One figure of a whole net: ours in one mode against a peer, in seconds."""

    ours: float
    native: float
    floor: float
    disturbed: bool
    memory: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Return how many times faster ours is; 0 without a peer."""
        return self.native / self.ours

    @property
    def share(self) -> float:
        """Return the share of the floor; 0 where it is not known."""
        return self.floor / self.ours


Column = tuple[Run, str, str]  # a run, a peer and a mode: inference, frozen, training, updated


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def share(value: float, run: Run | None) -> str:
    """Return a share of the floor in words; `~` says that the peaks changed in the run."""
    return f"{'~' if run is not None and run.results.drift > STEADY else ''}{value:.0%}".replace("%", " %")


def disturbed(row: Measurement) -> bool:
    """Return whether other work on the machine disturbed a measurement."""
    return max(row.native_spread, row.ours_spread) > DISTURBED


def cells(run: Run, kind: str = "nets") -> dict[tuple[str, str], dict[str, Cell]]:
    """Return the figures of whole nets, or of "sessions" with nets: by peer and mode, then by net.

    Rows of "memory" say only what memory nets of another file take.
    """
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in run.results.rows:
        if row.set == kind:
            name = net_name(row)
            modes = {row.direction: (row.regions or row.ours, row.regions_floor if row.regions else row.floor)}
            if row.frozen and row.direction == "inference":
                modes["frozen"] = row.frozen, row.frozen_floor
            if row.updated:
                modes["updated"] = row.updated, row.updated_floor
            for mode, (ours, floor) in modes.items():
                cell = Cell(ours, row.native, floor, disturbed(row), (row.memory, row.native_memory))
                found.setdefault((row.peer, mode), {})[name] = cell
    for row in run.results.rows:
        cell = found.get((row.peer, row.direction), {}).get(net_name(row)) if row.set == "memory" else None
        if cell is not None:
            found[row.peer, row.direction][net_name(row)] = cell._replace(memory=(row.memory, row.native_memory))
    return found


def net_name(row: Measurement) -> str:
    """Return the name of a net without its batch, and without a width that is the usual one."""
    return re.sub(r"(_?1\.0)? batch \d+$", "", row.name)


def columns(runs: Sequence[Run], kind: str = "nets") -> dict[Column, dict[str, Cell]]:
    """Return the columns of a table of whole nets: for each run and peer inference, frozen, training, updated."""
    order = ["inference", "frozen", "training", "updated"]
    found: dict[Column, dict[str, Cell]] = {}
    for run in runs:
        own = cells(run, kind)
        for peer in dict.fromkeys(peer for peer, _ in own):
            for mode in (mode for mode in order if (peer, mode) in own):
                found[run, peer, mode] = own[peer, mode]
    return found


def headings(found: Iterable[Column]) -> list[str]:
    """Return the headings of columns: what tells them apart."""
    parts = [(run.heading or run.where, PEERS.get(peer, peer), words(mode)) for run, peer, mode in found]
    told = [i for i in range(3) if len({part[i] for part in parts}) > 1] or [2]
    return [", ".join(part[i] for i in told) for part in parts]


def words(mode: str) -> str:
    """Return a mode in words."""
    known = {"frozen": "frozen inference", "training": "training step", "updated": "step, `ocl_sgd`"}
    return known.get(mode, mode)


def nets(runs: Sequence[Run], kind: str = "nets") -> list[str]:
    """Return a table of whole nets: ours / the peer's in milliseconds, the ratio, the share of the floor, memory."""
    found = columns(runs, kind)
    names = dict.fromkeys(name for by_name in found.values() for name in by_name)
    own, with_mean = found.items(), len(names) > 1 and any(peer != NO_PEER for _, peer, _ in found)
    rows = [
        [name, *(_net(by_name[name], run, with_mean) if name in by_name else "-" for (run, _, _), by_name in own)]
        for name in names
    ]
    if with_mean:
        rows.append(["**geometric mean**", *(_mean(list(cells.values()), run) for (run, _, _), cells in own)])
    return table(["net", *headings(found)], rows)


def sessions(runs: Sequence[Run]) -> list[str]:
    """Return a table of whole nets in sessions, without the framework."""
    return nets(runs, "sessions")


def trainers(runs: Sequence[Run]) -> list[str]:
    """Return a table of training steps in MXNet: against the core's trainer, processor time, other precisions."""
    found: dict[str, dict[str, str]] = {}
    for row in (row for run in runs for row in run.results.rows if row.set.split(",")[0].split()[0] == "trainers"):
        text = number(1e3 * row.ours)
        if row.native:
            text += f" / {number(1e3 * row.native)}: {row.native / row.ours:.2f}"
        found.setdefault(row.set, {})[re.sub(r"_?1\.0$", "", row.name)] = text
    named = {"trainers": "`Trainer` / the core's trainer", "trainers, processors": "its processors"}
    heads = [named.get(kind, f"`Trainer`, {kind.split()[-1]} / float32") for kind in found]
    names = dict.fromkeys(name for by_name in found.values() for name in by_name)
    return table(["net", *heads], [[name, *(by_name.get(name, "-") for by_name in found.values())] for name in names])


def _net(cell: Cell, run: Run, has_mean: bool) -> str:
    """Return a net's cell; where the table has means, those say whether peaks changed."""
    text = f"{number(1e3 * cell.ours)}"
    if cell.native:
        text += f" / {number(1e3 * cell.native)}: {cell.ratio:.2f}{'*' * cell.disturbed}"
    text += _after(cell.share, None if has_mean else run)
    return text + (f", {cell.memory[0] / 1e9:.1f} / {cell.memory[1] / 1e9:.1f} GB" if all(cell.memory) else "")


def _mean(own: Sequence[Cell], run: Run) -> str:
    text = f"{geometric_mean([cell.ratio for cell in own]):.2f}" if all(cell.native for cell in own) else "-"
    return text + _after(_mean_share(own), run)


def _mean_share(own: Sequence[Cell]) -> float:
    return geometric_mean([cell.share for cell in own]) if all(cell.floor for cell in own) else 0.0


def _after(value: float, run: Run | None) -> str:
    return f", {share(value, run)}" if value else ""


def overview(runs: Sequence[Run]) -> list[str]:
    """Return the answer in short: for each device and peer the mean, the lowest and the highest ratio of whole nets."""
    rows = []
    for run, heading, version, count, modes in _overview(runs):
        each = [list(mode.values()) for mode in modes.values()]
        rows.append([heading, version, str(count), *(_span(own, run) for own in each), _of_both(each)])
    heads = ["device", "instead of", "nets", "inference", "training step", "memory"]
    known = any(row[-1] != NONE for row in rows)
    return table(heads if known else heads[:-1], rows if known else (row[:-1] for row in rows))


def _of_both(each: Iterable[Sequence[Cell]]) -> str:
    found = [_less(own) for own in each]
    return " / ".join(found) if set(found) != {NONE} else NONE


def _less(own: Sequence[Cell]) -> str:
    """Return the mean ratio of the memory that the peer and ours take."""
    known = [cell.memory[1] / cell.memory[0] for cell in own if all(cell.memory)]
    return f"{geometric_mean(known):.2f}" if known and len(known) == len(own) else NONE


def memory(runs: Sequence[Run]) -> list[str]:
    """Return a table of the memory of whole nets in GB, ours / the peer's, a column for each net."""
    found = {column: own for column, own in columns(runs).items() if any(all(cell.memory) for cell in own.values())}
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    rows = [
        [label, *(_bytes(by_name[name]) if name in by_name else NONE for name in names)]
        for label, by_name in zip(headings(found), found.values())
    ]
    return table(["GB", *names], rows)


def _bytes(cell: Cell) -> str:
    return " / ".join(f"{one / 1e9:.2f}" for one in cell.memory) if all(cell.memory) else NONE


def _overview(runs: Sequence[Run]) -> Iterator[tuple[Run, str, str, int, dict[str, dict[str, Cell]]]]:
    """Yield for each run and peer the device, the peer's version, the number of nets, inference and training steps."""
    for run in runs:
        own = cells(run)
        for peer in dict.fromkeys(peer for peer, _ in own):
            count = len({name for (other, _), by_name in own.items() if other == peer for name in by_name})
            version = _named(run.results.peers.get(peer, PEERS.get(peer, peer)).partition(" (")[0], peer)
            modes = {mode: own.get((peer, mode), {}) for mode in ("inference", "training")}
            yield run, run.heading or run.where, version, count, modes


def figure(folder: Path) -> str:
    """Return the figure of the first page: the mean ratios of the overview in docs/performance.md."""
    kind, *named = next(match[2].split() for match in MARK.finditer(PAGES[0].read_text(encoding="utf-8")))
    assert kind == overview.__name__
    rows = []
    for _, heading, version, _, modes in _overview(runs(named, folder)):
        ratios = {words(mode): [cell.ratio for cell in own.values()] for mode, own in modes.items()}
        means = {mode: geometric_mean(found) for mode, found in ratios.items() if found and all(found)}
        rows.append((f"{heading}, against {version}", means))
    title = "How many times as fast clgraft runs whole nets as each peer: geometric means"
    return bars([row for row in rows if row[1]], title)


def _named(version: str, peer: str) -> str:
    """Return a peer's name as it is usually written, with its version: MXNet 1.9.1 for `mxnet 1.9.1`."""
    return re.sub(rf"^{peer}\b", PEERS.get(peer, peer), version)


def _span(own: Sequence[Cell], run: Run) -> str:
    if not own or not all(cell.native for cell in own):
        return "-"
    ratios = [cell.ratio for cell in own]
    text = f"**{geometric_mean(ratios):.2f}**"
    text += f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(own) > 1 else ""
    return text + _after(_mean_share(own), run)


def headline(runs: Sequence[Run]) -> list[str]:
    """Return a table of the ratios of each run, a column for each net; other peers than a run's first are named."""
    found = columns(runs)
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    rows = []
    for (run, peer, mode), by_name in found.items():
        other = "" if peer == next(iter(run.results.peers), peer) else PEERS.get(peer, peer)
        ratios = [by_name[name].ratio if name in by_name else 0.0 for name in names]
        stars = ["*" * by_name[name].disturbed if name in by_name else "" for name in names]
        mean = geometric_mean([ratio for ratio in ratios if ratio])
        label = ", ".join(filter(None, (run.heading, other and f"against {other}", words(mode))))
        rows.append([label, *(f"{r:.2f}{s}" if r else "-" for r, s in zip(ratios, stars)), f"{mean:.2f}"])
    return table(["", *names, "mean"], rows)


def groups(runs: Sequence[Run]) -> list[str]:
    """Return a table of operators by group: mean ratios, the lowest; shares, of the first run that knows its floor.

    Problems that were disturbed are left out.
    """
    heads, found, owners = [], [], []
    for run in runs:
        for peer in run.results.peers:
            heads.append(run.heading or f"{run.where}, {PEERS.get(peer, peer)}")
            found.append([row for row in run.results.rows if row.peer == peer and not disturbed(row)])
            owners.append(run)
    known = (i for i, own in enumerate(found) if all(row.floor for row in own))
    shown = list(known)[:1]
    rows = []
    for group in dict.fromkeys(_group(row) for own in found for row in own):
        each = [[row for row in own if _group(row) == group] for own in found]
        cells = [SHORT.get(group, GROUPS.get(group, group)), *map(_ratios, each)]
        rows.append([*cells, *(_shares(owners[i], each[i]) for i in shown)])
    return table(["operators", *heads, *(f"share, {heads[i]}" for i in shown)], rows)


def _group(row: Measurement) -> str:
    return JOINED.get(row.group, row.group)


def _ways(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    ways = sorted({row.direction for row in rows}, key=lambda way: (not way.startswith(FIRST), way))
    return [[row for row in rows if row.direction == way] for way in ways]


def _ratios(rows: Sequence[Measurement]) -> str:
    if not rows:
        return "-"
    means = " / ".join(f"{geometric_mean([row.ratio for row in way]):.2f}" for way in _ways(rows))
    return f"{means} ({min(row.ratio for row in rows):.2f})"


def _shares(run: Run, rows: Sequence[Measurement]) -> str:
    return " / ".join(share(geometric_mean([row.share for row in way]), run) for way in _ways(rows)) or "-"


def slower(runs: Sequence[Run]) -> list[str]:
    """Return the problems of each run in which ours is slower, the slowest of them first."""
    lines = []
    for run in runs:
        for peer in run.results.peers:
            rows = [row for row in run.results.rows if row.peer == peer and not disturbed(row)]
            below = sorted((row for row in rows if row.ratio < 1), key=lambda row: row.ratio)
            each = ", ".join(f"{row.name} {row.direction} {row.ratio:.2f}" for row in below[:LISTED])
            where = f"{run.heading or run.where}, {PEERS.get(peer, peer)}"
            more = "; the lowest are " if len(below) > LISTED else ": " if below else ""
            lines += wrapped(f"* {where}: {len(below)} of {len(rows)} are below 1{more}{each}.")
    return lines


def types(runs: Sequence[Run]) -> list[str]:
    """Return a table of problems in types, which the names of sets end with: in each set the mean ratio, the lowest."""
    found: dict[str, dict[str, list[float]]] = {}
    for own, row in ((run, row) for run in runs for row in run.results.rows):
        name, _, dtype = row.set.rpartition(" ")
        heading = ", ".join(filter(None, (name, own.heading)))
        found.setdefault(dtype, {}).setdefault(heading, []).append(row.ratio)
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    ratios = ([by_name[name] for name in names] for by_name in found.values())
    cells = ([f"{geometric_mean(own):.2f}, {min(own):.2f}" for own in each] for each in ratios)
    return table(["type", *names], ([dtype, *own] for dtype, own in zip(found, cells)))


def calls(runs: Sequence[Run]) -> list[str]:
    """Return a table of forward calls in microseconds, without those of empty operators, a column for each run."""
    every = (row for run in runs for row in run.results.rows if row.direction != "training")
    names = dict.fromkeys(row.name for row in every if not re.search("both$|empty", row.name))
    rows = []
    for name in names:
        found = [next((row.ours for row in run.results.rows if row.name == name), 0.0) for run in runs]
        rows.append([name, *(number(1e6 * seconds) if seconds else "-" for seconds in found)])
    return table(["microseconds", *(run.heading or run.where for run in runs)], rows)


def made(runs: Sequence[Run]) -> list[str]:
    """Return the commands that measured the runs, each once, with the days, the machines and the peers."""
    days: dict[str, list[str]] = {}
    facts: dict[str, None] = {}
    for run in runs:
        command = re.sub(r" --(json|device) \S+", "", run.results.command)
        days.setdefault(run.results.date, []).append(f"`{command}`")
        cpu = run.results.runtime in RUNTIMES
        machine = f"{run.results.processor}, {run.results.cores}" if cpu else run.where
        facts.update(dict.fromkeys([machine, *_peers(run.results)]))
    commands = (f"{' and '.join(dict.fromkeys(own))} on {day}" for day, own in days.items())
    text = f"Measured by {', '.join(commands)}; {'; '.join(facts)}."
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _peers(results: Results) -> Iterator[str]:
    for peer, version in results.peers.items():
        threads = results.peer_threads.get(peer)
        yield _named(version, peer) + (f" with {threads.count} threads" if threads else "")


def machines(runs: Sequence[Run]) -> list[str]:
    """Return what stands in each file: where, when, with which versions and by which command it was measured."""
    lines = []
    for run in runs:
        results = run.results
        versions = [f"{name} {version}" for name, version in results.versions.items()]
        peers = [f"{_named(own, peer)}: {results.threads_of(peer)}" for peer, own in results.peers.items()]
        processor = results.processor or "processor not recorded"
        parts = [results.date, f"{processor}, {results.cores}", f"{results.device} {results.driver}".strip()]
        parts += [", ".join(versions), *peers]
        if results.peak_flops:
            changed = f", changed by {results.drift:.0%} during the run" if results.drift else ""
            parts.append(f"peaks {results.peaks}{changed}")
        text = "; ".join(filter(None, [*parts, results.note]))
        lines += wrapped(f"* `{run.name}.json`: {text}. `{results.command}`")
    return lines


def span(runs: Sequence[Run], mode: str) -> str:
    """Return the lowest and the highest ratio of a run's whole nets in a mode, in words, to its first peer."""
    found = next(own for (_, _, other), own in columns(runs).items() if other == mode)
    ratios = [cell.ratio for cell in found.values()]
    return f"{min(ratios):.2g} to {max(ratios):.2g}"


def wrapped(text: str) -> list[str]:
    """Return a paragraph of a list as lines."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


TABLES = (nets, sessions, trainers, overview, headline, memory, groups, slower, types, calls, made, machines)
KINDS: dict[str, Callable[[Sequence[Run]], list[str]]] = {one.__name__: one for one in TABLES}


def read(word: str, folder: Path) -> list[Run]:
    """Return the runs that a word of a mark names: `*` for all, `one+other` for files that are one column."""
    names, _, heading = word.partition("=")
    if names == "*":
        return [run for path in sorted(folder.glob("*.json")) for run in read(path.stem, folder)]
    first, *others = (Results.read(folder / f"{name}.json") for name in names.split("+"))
    first.rows += [row for other in others for row in other.rows]
    return [Run(names, heading.replace("_", " "), first)]


def filled(text: str, folder: Path) -> str:
    """Return a page with the tables of the results in a folder.

    Raises
    ------
    KeyError
        If a mark names an unknown kind.
    """

    def fill(match: re.Match[str]) -> str:
        parts = [part.split() for part in match[2].split(";")]
        if parts[0][0] == "span":
            _, mode, *words = parts[0]
            return f"{match[1]}{span(runs(words, folder), mode)}{match[4]}"
        made = ["\n".join(KINDS[kind](runs(words, folder))) for kind, *words in parts]
        return "\n".join([match[1], "\n\n".join(made), match[4]])

    return MARK.sub(fill, text)


def runs(words: Iterable[str], folder: Path) -> list[Run]:
    """Return the runs that the words of a mark name."""
    return [run for word in words for run in read(word, folder)]


def used(text: str) -> set[str]:
    """Return the names of the files that a page's marks name."""
    parts = (part.split() for match in MARK.finditer(text) for part in match[2].split(";"))
    words = (word for _, *rest in parts for word in rest)
    return {name for word in words for name in word.partition("=")[0].split("+")}


def main() -> int:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="folder of files of results")
    options = parser.parse_args()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), options.results), encoding="utf-8")
    FIGURE.write_text(figure(options.results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
