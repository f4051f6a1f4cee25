"""What a swap did: a row for every operator of the model, printable as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from clgraft.core import html

MOST_NAMED = 8  # regions in a line


@dataclass(frozen=True)
class Row:
    """One operator of the model, and the ``ocl_*`` operator that it became; if that is empty, `reason` says why."""

    name: str
    operator: str
    became: str = ""
    reason: str = ""

    @property
    def graft(self) -> str:
        """What it became, by its former name."""
        return self.became


@dataclass
class Report:
    """The rows of a swap, in the order of the graph. ``str(report)`` is a table of counts.

    Attributes
    ----------
    rows : list of Row
    guards : int
    regions : dict of str to list of str
        The operators inside of each region; their values are not seen outside of it, but for its outputs.
    frozen : dict of str to list of str
        The frozen parameters and auxiliary states of each region.
    before : int
        How many operators were clgraft's already.
    precision : str
        The type of the regions' products, if one was given.
    """

    rows: list[Row] = field(default_factory=list)
    guards: int = 0
    note: str = ""
    regions: dict[str, list[str]] = field(default_factory=dict)
    frozen: dict[str, list[str]] = field(default_factory=dict)
    before: int = 0
    precision: str = ""

    @property
    def replaced(self) -> list[Row]:
        """What was replaced."""
        return [row for row in self.rows if row.became]

    @property
    def kept(self) -> list[Row]:
        """What was left alone."""
        return [row for row in self.rows if not row.became]

    def __repr__(self) -> str:
        return f"Report({self._summary})"

    def _repr_html_(self) -> str:
        heads, *cells = self._table()
        return html.table(heads, cells, self._summary)

    @property
    def _summary(self) -> str:
        text = f"{len(self.replaced)} replaced, {len(self.kept)} left alone, {self.guards} guards"
        if self.regions:
            joined = ", ".join(f"{name} ({len(inside)} operators)" for name, inside in self.regions.items())
            if len(self.regions) > MOST_NAMED:
                joined = f"{len(self.regions)} of {sum(map(len, self.regions.values()))} operators"
            text += f"; regions{f' in {self.precision}' if self.precision else ''}: {joined}"
        if self.frozen:
            text += "; frozen: " + ", ".join(f"{name} ({len(arrays)} arrays)" for name, arrays in self.frozen.items())
        return text

    def _table(self) -> list[tuple[str, str, str, str]]:
        counts = Counter((row.operator, row.became, row.reason) for row in self.rows)
        heads = ("operator", "count", "replaced by", "left alone because")
        cells = [(operator, str(count), became or "-", reason) for (operator, became, reason), count in counts.items()]
        return [heads, *cells]

    def __str__(self) -> str:
        lines = self._table()
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)
        notes = "".join(f"\nnote: {line}" for line in self.note.splitlines())
        return f"{table}\n{self._summary}{notes}"
