"""Changes to a text, collected first and applied together, so that offsets stay those of the tree."""

from __future__ import annotations


class Edits:
    """Replacements of spans of one text.

    Parameters
    ----------
    text : str
        The text that all offsets refer to.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._changes: list[tuple[int, int, int, str]] = []

    def __len__(self) -> int:
        return len(self._changes)

    def replace(self, start: int, end: int, new: str) -> None:
        """Replace a span by `new`."""
        if not 0 <= start <= end <= len(self.text):
            raise ValueError(f"[edits] got span {start}..{end}, expected one inside 0..{len(self.text)}")
        self._changes.append((start, end, len(self._changes), new))

    def insert(self, position: int, new: str) -> None:
        """Insert `new` before a position; several at one position keep their order."""
        self.replace(position, position, new)

    def remove(self, start: int, end: int) -> None:
        """Remove a span, and its line if nothing else is on it."""
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", end)
        if line_end >= 0 and not self.text[line_start:start].strip() and not self.text[end:line_end].strip():
            self.replace(line_start, line_end + 1, "")
            return
        if start > 0 and self.text[start - 1] in " \t" and (end == len(self.text) or self.text[end].isspace()):
            start -= 1
        self.replace(start, end, "")

    def apply(self) -> str:
        """Return the changed text.

        Raises
        ------
        ValueError
            When two changes overlap.
        """
        parts = []
        position = 0
        for start, end, _, new in sorted(self._changes):
            if start < position:
                raise ValueError(f"[edits] got overlapping changes at {start}, expected each span once")
            parts += [self.text[position:start], new]
            position = end
        return "".join(parts) + self.text[position:]


def indent_of(text: str, position: int) -> str:
    """Return the white space that starts the line of a position."""
    line_start = text.rfind("\n", 0, position) + 1
    line = text[line_start:position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def newline_of(text: str) -> str:
    """Return the line ending that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"
