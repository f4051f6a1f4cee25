"""The report of a device: what `clgraft report` gathers, as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clgraft.plugins.command_line.bench.results import Results
from clgraft.plugins.command_line.check.report import CheckReport
from clgraft.plugins.plugin import PluginError

FORMAT = 1


@dataclass
class Checked:
    """What became of `clgraft check`.

    Attributes
    ----------
    rows, passed : int
    problems, of : int
        How many problems were compared, and how many there are; 0 if that is not known.
    seconds : float
    worst : float
        The largest error over its limit.
    failed : list of str
        The rows that do not pass, as `clgraft check` prints them.
    ended : str
        Why it did not go to its end; empty if it did.
    """

    rows: int = 0
    passed: int = 0
    problems: int = 0
    of: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    failed: list[str] = field(default_factory=list)
    ended: str = ""

    @classmethod
    def summary(cls, found: CheckReport, of: int, seconds: float, ended: str = "") -> Checked:
        """Return the summary of the rows of a check."""
        shares = [row.error / row.limit for row in found.rows if not row.note and math.isfinite(row.error)]
        return cls(
            len(found.rows),
            len(found.rows) - len(found.failed),
            len({row.name for row in found.rows}),
            of,
            round(seconds, 1),
            float(f"{max(shares, default=0.0):.2g}"),
            list(map(str, found.failed)),
            ended,
        )

    def __str__(self) -> str:
        text = f"{self.passed} of {self.rows} rows pass, of {self.problems} problems"
        if self.rows:
            text += f"; the largest error is {self.worst:.0%} of what is allowed"
        return text + (f"; {self.ended}" if self.ended else "")


@dataclass
class DeviceReport:
    """What is known of a device.

    Attributes
    ----------
    capabilities : dict
        The fields of `DeviceInfo`: what planners rely on, some of it probed.
    check : Checked
    tuned : dict
        ``device``: the words of a device for which the rows are valid; ``rows``: dicts with problem, choice, and the
        seconds ``before`` and ``after``.
    bench : Results
        The machine, the versions, the peaks, ten problems and a net.
    """

    capabilities: dict[str, Any]
    check: Checked
    tuned: dict[str, Any]
    bench: Results

    def to_json(self) -> str:
        """Return everything as JSON."""
        parts = {
            "capabilities": json.dumps(self.capabilities, indent=1),
            "check": json.dumps(dataclasses.asdict(self.check), indent=1),
            "tuned": json.dumps(self.tuned, indent=1),
            "bench": self.bench.to_json().strip(),
        }
        return f'{{\n"report": {FORMAT}' + "".join(f',\n"{name}": {text}' for name, text in parts.items()) + "\n}\n"

    @classmethod
    def read(cls, path: Path) -> DeviceReport:
        """Read what `to_json` wrote.

        Raises
        ------
        PluginError
            If the file holds something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["report"] != FORMAT:
                raise ValueError(f"got report {content['report']}, expected {FORMAT}")
            bench = Results.of(content["bench"])
            return cls(content["capabilities"], Checked(**content["check"]), content["tuned"], bench)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PluginError(f"[report] got {path}, expected a file of `clgraft report`: {error}") from None
