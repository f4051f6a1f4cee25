"""Tuned rows that ship: text files of problems and choices, for classes of devices.

A file begins with ``device: WORDS``, all of which a device must have (see `identity.device_words`), and holds lines
``problem -> choice``; a ``#`` starts a comment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clgraft.core.errors import ProblemError
from clgraft.core.planning.choice import Choice
from clgraft.core.tuning.identity import device_words

if TYPE_CHECKING:
    from clgraft.core.planning.device import DeviceInfo

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class TunedRow:
    """A tuned problem: its text and the choice that won."""

    problem: str
    choice: Choice


def read(text: str, name: str = "rows") -> tuple[frozenset[str], tuple[TunedRow, ...]]:
    """Read a file's text: the device's pattern and the rows.

    Raises
    ------
    ProblemError
        With the line that cannot be read.
    """
    pattern: frozenset[str] = frozenset()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        problem, arrow, choice = line.partition(" -> ")
        if line.startswith("device:"):
            pattern = frozenset(line.partition(":")[2].split())
        elif line and not (arrow and pattern):
            raise ProblemError(
                f"[tuning] got {line!r} in {name}:{number}, expected a device: line, then problem -> choice"
            )
        elif line:
            found.append(TunedRow(problem.strip(), Choice.parse(choice)))
    return pattern, tuple(found)


@cache
def _files() -> tuple[tuple[frozenset[str], tuple[TunedRow, ...]], ...]:
    return tuple(read(path.read_text(), path.name) for path in sorted(FOLDER.glob("*.txt")))


@cache
def shipped(device: DeviceInfo) -> tuple[TunedRow, ...]:
    """Return the rows for a device, those of the longest pattern first."""
    words = set(device_words(device))
    fitting = [(pattern, found) for pattern, found in _files() if pattern <= words]
    return tuple(row for _, found in sorted(fitting, key=lambda item: -len(item[0])) for row in found)
