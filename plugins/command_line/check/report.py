"""The outcome of a check."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from clgraft.core import html
from clgraft.plugins.command_line.check.runner import HEADER, CheckRow


@dataclass
class CheckReport:
    """All rows of a check.

    Attributes
    ----------
    device : str
    rows : list of CheckRow
    """

    device: str
    rows: list[CheckRow] = field(default_factory=list)

    @property
    def failed(self) -> list[CheckRow]:
        """Return the rows that do not pass."""
        return [row for row in self.rows if not row.passed]

    @property
    def passed(self) -> bool:
        """Return whether every row passes."""
        return not self.failed

    @property
    def summary(self) -> str:
        """Return how many rows pass."""
        return f"{len(self.rows) - len(self.failed)} of {len(self.rows)} rows pass"

    def __str__(self) -> str:
        return "\n".join([f"on {self.device}", HEADER, *map(str, self.rows), self.summary])

    def __repr__(self) -> str:
        return f"CheckReport({self.summary} on {self.device})"

    def _repr_html_(self) -> str:
        heads = ["", "what", "tensor", "error", "limit", "framework's ms", "ours ms"]
        return html.table(heads, map(_cells, self.rows), repr(self))

    def to_json(self) -> str:
        """Return everything for programs; numbers that JSON lacks become null."""
        listed = []
        for row in self.rows:
            entry = {**dataclasses.asdict(row), "passed": row.passed}
            listed.append({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()})
        return json.dumps({"device": self.device, "passed": self.passed, "rows": listed}, indent=2)


def _cells(row: CheckRow) -> list[str]:
    def milliseconds(seconds: Any) -> str:
        return "" if seconds is None else f"{1e3 * seconds:.3f}"

    verdict = "-" if row.note else "pass" if row.passed else "FAIL"
    error = [row.note, ""] if row.note else [f"{row.error:.1e}", f"{row.limit:.1e}"]
    return [verdict, row.name, row.tensor, *error, milliseconds(row.native_seconds), milliseconds(row.seconds)]
