"""What a swap did, layer by layer."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

from clgraft.caffe_layers.swap.regions import Region
from clgraft.core import html


@dataclass(frozen=True)
class Row:
    """One layer: its line, what it was, what it became (empty if it stays) and why."""

    name: str
    kind: str
    line: int
    became: str = ""
    reason: str = ""


@dataclass
class Report:
    """The outcome for one net.

    Attributes
    ----------
    rows : list of Row
        Every layer of the net, in its order.
    notes : list of str
        What concerns the net and no single layer.
    source, target : str
        Files read and written, where there were any.
    regions : list of Region
        Layers that run as one graph.
    before : int
        How many layers were clgraft's already.
    """

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: str = ""
    target: str = ""
    regions: list[Region] = field(default_factory=list)
    before: int = 0

    @property
    def swapped(self) -> list[Row]:
        """Layers that were replaced."""
        return [row for row in self.rows if row.became]

    @property
    def left(self) -> list[Row]:
        """Layers that were left alone."""
        return [row for row in self.rows if not row.became]

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Name and type of every layer."""
        return [(row.name, row.kind) for row in self.rows]

    def __repr__(self) -> str:
        return f"Report({': '.join(filter(None, [self._files, self._summary]))})"

    def _repr_html_(self) -> str:
        cells = [(row.line, row.name, row.kind, row.became or "-", row.reason) for row in self.rows]
        notes = [self._summary, *map(str, self.regions), *(f"note: {note}" for note in self.notes)]
        return html.table(["line", "layer", "type", "became", "reason"], cells, self._files, notes)

    @property
    def _files(self) -> str:
        return f"{self.source} -> {self.target}" if self.source and self.target else self.source

    @property
    def _summary(self) -> str:
        counts = collections.Counter(row.kind for row in self.swapped)
        changed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"{len(self.swapped)} of {len(self.rows)} layers changed" + (f": {changed}" if changed else "")

    def __str__(self) -> str:
        lines = [self._files] if self.source else []
        if self.rows:
            cells = [("line", "layer", "type", "became", "")]
            cells += [(str(row.line), row.name, row.kind, row.became or "-", row.reason) for row in self.rows]
            widths = [max(len(row[column]) for row in cells) for column in range(4)]
            for row in cells:
                padded = [
                    row[0].rjust(widths[0]),
                    *(row[column].ljust(widths[column]) for column in range(1, 4)),
                    row[4],
                ]
                lines.append("  ".join(padded).rstrip())
            lines += [self._summary, *map(str, self.regions)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)
