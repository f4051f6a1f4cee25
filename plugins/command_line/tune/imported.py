"""Tuned rows from a file of somebody else's: what `clgraft report` or `clgraft tune --export` wrote.

Nothing in such a file is believed. It has to be for this device, and every row has to be a problem and a choice that
clgraft itself may try for it; the search then runs each choice next to the heuristic's (see `worker.search`), so that
one that is wrong, slow or ends the process is no result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.files import expect_file
from clgraft.core.planning.choice import HEURISTIC, Choice
from clgraft.core.planning.device import DeviceInfo
from clgraft.core.problem import parse
from clgraft.core.tuning import rows
from clgraft.core.tuning.identity import device_words
from clgraft.plugins.command_line.tune.supervise import TuneError

MOST_BYTES, MOST_ROWS, MOST_LETTERS = 2**24, 10_000, 2000
MOST_OF_MEMORY = 0.25  # the share of the device's memory that a problem's arguments may take
WANTED = "a file of `clgraft report` (its .json) or of `clgraft tune --export`"
_WORDS = re.compile(r"[a-z0-9_]+( [a-z0-9_]+)*")


@dataclass
class Imported:
    """The rows of a file.

    Attributes
    ----------
    device : str
        The words that a device must have.
    choices : dict of str to list of str
        By the text of a problem.
    refused : dict of str to str
        Rows that cannot be used, and why.
    """

    device: str
    choices: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Return the problems that have a choice."""
        return list(self.choices)


def read(path: Path, device: DeviceInfo) -> Imported:
    """Read the rows of a file for a device.

    Raises
    ------
    FileError
        If the file cannot be read.
    TuneError
        If it is none of ours, or is for other devices; the text names it and says why.
    """
    pattern, pairs = _content(path, _text(path))
    if not _WORDS.fullmatch(pattern) or len(pattern) > MOST_LETTERS:
        raise TuneError(f"[tune] got {path} for device {_short(pattern)}, expected words of letters and digits")
    here = device_words(device)
    missing = [word for word in pattern.split() if word not in here]
    if missing:
        raise TuneError(
            f"[tune] got {path}, whose rows are for devices with {_short(pattern)}; {device} is {' '.join(here)!r}, "
            f"without {_short(' '.join(missing))}: rows are valid only for devices of their kind"
        )
    found = Imported(pattern)
    for problem, choice in pairs:
        try:
            text, chosen = _problem(problem, device), str(_choice(choice))
            found.choices.setdefault(text, []).append(chosen)
        except (ProblemError, ArithmeticError, RecursionError, ValueError) as error:
            found.refused[f"{_short(problem)} -> {_short(choice)}"] = _short(str(error), quoted=False)
    if not pairs:
        raise TuneError(f"[tune] got no tuned row in {path}, expected at least one")
    return found


def _text(path: Path) -> str:
    """Return what a file holds, if it is a regular one of a reasonable size."""
    expect_file(path, "tune", WANTED)
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise TuneError(f"[tune] got {path}, which cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise TuneError(f"[tune] got {path} of more than {MOST_BYTES >> 20} MiB, expected {WANTED}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise TuneError(f"[tune] got {path}, which is no text; expected {WANTED}") from None


def _content(path: Path, text: str) -> tuple[str, Sequence[tuple[str, str]]]:
    """Return the words of the device, and the pairs of a problem and a choice."""
    try:
        if text.lstrip().startswith("{"):
            found = _of_report(json.loads(text))
        else:
            pattern, listed = rows.read(text, path.name)
            found = " ".join(sorted(pattern)), [(row.problem, str(row.choice)) for row in listed]
    except ProblemError as error:
        raise TuneError(f"[tune] got {path}, expected {WANTED}: {_short(str(error), quoted=False)}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = _short(f"{type(error).__name__}: {error}", quoted=False)
        raise TuneError(f"[tune] got {path}, expected {WANTED}: {said}") from None
    if len(found[1]) > MOST_ROWS:
        raise TuneError(f"[tune] got {len(found[1])} rows in {path}, expected at most {MOST_ROWS}")
    return found


def _of_report(content: Any) -> tuple[str, list[tuple[str, str]]]:
    tuned = content["tuned"]
    pairs = [(row["problem"], row["choice"]) for row in tuned["rows"]]
    if not isinstance(tuned["device"], str) or not all(isinstance(word, str) for pair in pairs for word in pair):
        raise TypeError("device, problem and choice have to be text")
    return tuned["device"], pairs


def _problem(text: str, device: DeviceInfo) -> str:
    """Return a problem's text as clgraft writes it; `ProblemError` if this device is not to try it."""
    _expect_short(text)
    problem = parse(text)
    if problem.nbytes > MOST_OF_MEMORY * device.global_memory:
        raise ProblemError(f"it takes {problem.nbytes / 2**30:.1f} GiB, more than a quarter of the device's memory")
    return str(problem)


def _choice(text: str) -> Choice:
    _expect_short(text)
    choice = Choice.parse(text)
    if choice == HEURISTIC:
        raise ProblemError("the heuristic is what is used without a row")
    return choice


def _expect_short(text: str) -> None:
    if len(text) > MOST_LETTERS:
        raise ProblemError(f"it has {len(text)} letters, expected at most {MOST_LETTERS}")


def _short(text: str, quoted: bool = True) -> str:
    """Return a text for a message: cut, and without what a terminal would act on."""
    cut = text if len(text) <= 160 else text[:157] + "..."
    return repr(cut) if quoted else "".join(letter if letter.isprintable() else "?" for letter in cut)


def refusals(found: Imported) -> Iterable[str]:
    """Return a line for each row that cannot be used."""
    return (f"refused: {row}: {reason}" for row, reason in found.refused.items())
