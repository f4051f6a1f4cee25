"""The results of a benchmark: rows, stored as JSON and summarised by group."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clgraft.core import settings
from clgraft.core.files import FileError, read_file
from clgraft.core.planning.floor import Peaks
from clgraft.core.planning.precision import FLOAT32
from clgraft.plugins.command_line.bench.cases import GROUPS
from clgraft.plugins.command_line.bench.peer_threads import Threads
from clgraft.plugins.command_line.bench.timing import geometric_mean

WANTED = "results of `clgraft bench --json`"
NO_PEER = "-"  # the peer of rows that measure ours alone
STEADY = 0.1  # the change of peaks during a run that is no more than noise


@dataclass(frozen=True)
class Measurement:
    """One case against one peer in one direction.

    Attributes
    ----------
    set, name, text, group, direction, peer : str
        For whole nets `set` is ``nets`` and the direction ``training`` or ``inference``.
    native, ours : float
        Median seconds; `native` is 0 where no peer has the operator.
    native_spread, ours_spread : float
        Distance of the quartiles over the median.
    flops, nbytes : float
        Operations and bytes at least; 0 if not counted.
    difference : float
        Relative difference between both sides' results.
    memory, native_memory : float
        Bytes of the device that ours and the peer hold; 0: not known.
    layout : str
        The peer's faster layout, where it has several; of whole nets the fastest of `ways`.
    ways : dict of str to float
        Median seconds of a whole net in each way in which the peer runs it, where there are several.
    regions : float
        Median seconds of a whole net with regions; 0 where there are none.
    frozen : float
        The same with frozen parameters.
    updated : float
        Median seconds of a training step with regions and clgraft's optimizer; 0 where it is not another one.
    floor, regions_floor, frozen_floor, updated_floor : float
        Seconds that the measured peaks allow for what clgraft runs in `ours`, `regions`, `frozen` and `updated`; 0: not
        known.
    uncounted : int
        Operators of a whole net that stay with the framework: the floors do not count them.
    """

    set: str
    name: str
    text: str
    group: str
    direction: str
    peer: str
    native: float
    ours: float
    native_spread: float = 0.0
    ours_spread: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    difference: float = 0.0
    layout: str = ""
    memory: float = 0.0
    native_memory: float = 0.0
    regions: float = 0.0
    frozen: float = 0.0
    floor: float = 0.0
    regions_floor: float = 0.0
    frozen_floor: float = 0.0
    updated: float = 0.0
    updated_floor: float = 0.0
    uncounted: int = 0
    ways: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Return how many times faster ours is; 0 without a peer."""
        return self.native / self.ours

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells a row from the others of a run."""
        return self.set, self.name, self.direction, self.peer

    @property
    def share(self) -> float:
        """Return the share of the floor that is reached, by the fastest of ours; 0 where it is not known."""
        sides = (
            *((self.ours, self.floor), (self.regions, self.regions_floor), (self.frozen, self.frozen_floor)),
            (self.updated, self.updated_floor),
        )
        seconds, floor = min(side for side in sides if side[0])
        return floor / seconds


def command_line() -> str:
    """Return the command that this process runs."""
    return "clgraft bench " + shlex.join(sys.argv[2:])


def joined_commands(first: str, second: str) -> str:
    """Return the command that measures the nets of two, which are alike but for them."""
    nets = [re.search(r"(?<=--nets )\S+", command) for command in (first, second)]
    if nets[0] is None or nets[1] is None:
        return first
    every = dict.fromkeys([*nets[0][0].split(","), *nets[1][0].split(",")])
    return re.sub(r"(?<=--nets )\S+", ",".join(every), re.sub(r" --directions \S+", "", first))


@dataclass
class Results:
    """All rows of a run, and the machine on which they were measured.

    Attributes
    ----------
    device, runtime : str
    peers : dict of str to str
        Versions by name.
    peak_flops, peak_bandwidth : float
        Measured at the start of the same run; floors follow from them.
    drift : float
        How much higher or lower one of the peaks was at the end, 0.25 for a quarter: on a machine whose speed changed
        shares of the floor are rough.
    threads : int
        Cores of the process.
    command : str
    processor : str
    modes : dict of str to str
        How the operators of each peer were called.
    peer_threads : dict of str to Threads
        With how many threads each peer computed, and why.
    driver : str
        The version of the device's driver.
    versions : dict of str to str
        Those of clgraft and Python.
    date : str
        The day of the run, as in 2026-11-25.
    note : str
        What a reader has to know about the figures.
    precision : str
        The value of ``CLGRAFT_PRECISION``.
    """

    device: str
    command: str
    threads: int
    peak_flops: float
    peak_bandwidth: float
    peers: dict[str, str] = field(default_factory=dict)
    rows: list[Measurement] = field(default_factory=list)
    processor: str = ""
    drift: float = 0.0
    modes: dict[str, str] = field(default_factory=dict)
    peer_threads: dict[str, Threads] = field(default_factory=dict)
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    note: str = ""
    precision: str = FLOAT32

    @property
    def peaks(self) -> Peaks:
        """Return the measured peaks."""
        return Peaks(self.peak_flops, self.peak_bandwidth)

    @property
    def runtime(self) -> str:
        """Return the platform of a device such as ``1:0 a platform / a processor``."""
        return self.device.split(" ", 1)[-1].split(" /")[0]

    @property
    def cores(self) -> str:
        """Return the number of cores in words."""
        return f"{self.threads} core{'s' * (self.threads != 1)}"

    @property
    def types(self) -> str:
        """Return in which types both sides compute, in words."""
        if self.precision == FLOAT32:
            return FLOAT32
        if self.precision in settings.MIXED:
            return f"our nets in {self.precision}, peers' in the faster of it and {FLOAT32}, operators in {FLOAT32}"
        return f"ours in {self.precision}, peers in {FLOAT32}, on a GPU as ours"

    def conditions(self) -> str:
        """Return where and how it was measured: what every table of its figures says."""
        where = f"{self.processor or 'processor not recorded'}, {self.cores}; {self.runtime}; {self.types}"
        if self.drift > STEADY:
            where += f"; peaks changed by {self.drift:.0%} during the run, so shares of the floor are rough"
        peers = (", ".join(filter(None, (self.threads_of(peer), self.modes.get(peer)))) for peer in self.peers)
        return "; ".join([where, *(f"{peer}: {words}" for peer, words in zip(self.peers, peers))])

    def threads_of(self, peer: str) -> str:
        """Return a peer's threads in words."""
        return str(self.peer_threads.get(peer, "threads not recorded"))

    def joined(self, other: Results) -> Results:
        """Return one run with the rows of another after it, which take the places of rows that it measured again.

        Shares of the floor are rough where the peaks of both runs differ.

        Raises
        ------
        FileError
            If they were measured on different devices, with different numbers of cores or in different types.
        """
        kinds = [(one.device, one.cores, one.types) for one in (self, other)]
        if kinds[0] != kinds[1]:
            got, expected = (f"{device} on {cores} ({types})" for device, cores, types in kinds)
            raise FileError(f"[bench] got results of {got}, expected those of {expected}")
        again = {row.key for row in other.rows}
        return dataclasses.replace(
            self,
            command=joined_commands(self.command, other.command),
            peers={**self.peers, **other.peers},
            modes={**self.modes, **other.modes},
            peer_threads={**self.peer_threads, **other.peer_threads},
            rows=[*(row for row in self.rows if row.key not in again), *other.rows],
            drift=max(self.drift, other.drift, self.peaks.change(other.peaks)),
            date=other.date,
        )

    def to_json(self) -> str:
        """Return everything as JSON, a line for each row."""
        content = dataclasses.asdict(self)
        del content["rows"]
        rows = [json.dumps({**dataclasses.asdict(row), "share": row.share}) for row in self.rows]
        head = json.dumps(content, indent=1).removesuffix("\n}")
        return f'{head},\n "rows": [' + ",".join(f"\n  {row}" for row in rows) + "\n ]\n}\n"

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `to_json` wrote.

        Raises
        ------
        FileError
            If the file cannot be read or holds something else.
        """
        data = read_file(path, "bench", WANTED)
        try:
            return cls.of(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FileError(f"[bench] got {path}, expected {WANTED}: {error}") from None

    @classmethod
    def of(cls, content: dict[str, Any]) -> Results:
        """Return the results that an object of JSON holds."""
        rows = [Measurement(**{name: row[name] for name in row if name != "share"}) for row in content["rows"]]
        threads = {name: Threads.read(found) for name, found in content.get("peer_threads", {}).items()}
        return cls(**{**content, "rows": rows, "peer_threads": threads})


@dataclass(frozen=True)
class Summary:
    """The ratios of a group against a peer in one direction, and the share of the floor; 0 where that is not known."""

    count: int
    mean: float
    worst: float
    worst_name: str
    share: float = 0.0


def summaries(rows: Iterable[Measurement]) -> dict[tuple[str, str, str], Summary]:
    """Summarise rows by (group, direction, peer), groups in the order of the table."""
    sorted_rows: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in rows:
        if row.peer == NO_PEER:
            continue
        sorted_rows.setdefault((row.group, row.direction, row.peer), []).append(row)
    order = [*GROUPS]
    keys = sorted(sorted_rows, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), *key))
    return {key: _summary(sorted_rows[key]) for key in keys}


def _summary(rows: Sequence[Measurement]) -> Summary:
    worst = min(rows, key=lambda row: row.ratio)
    shares = [row.floor / row.ours for row in rows]
    share = geometric_mean(shares) if all(shares) else 0.0
    return Summary(len(rows), geometric_mean([row.ratio for row in rows]), worst.ratio, worst.name, share)
