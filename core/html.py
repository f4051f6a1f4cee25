"""Tables for notebooks, which show objects by their `_repr_html_`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", notes: Iterable[str] = ()) -> str:
    """Return an HTML table.

    Parameters
    ----------
    heads : sequence of str
    rows : iterable of sequence
        Cells, shown as text.
    title : str
        A line above the table.
    notes : iterable of str
        Lines below the table.
    """
    parts = [f"<p><b>{escape(title)}</b></p>"] if title else []
    lines = [_row("td", row) for row in rows]
    if lines:
        parts += ["<table>", _row("th", heads), *lines, "</table>"]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    return "\n".join(parts)


def _row(tag: str, cells: Iterable[object]) -> str:
    style = ' style="text-align: left"'
    return "<tr>" + "".join(f"<{tag}{style}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
