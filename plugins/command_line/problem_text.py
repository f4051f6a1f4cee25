"""Problems that a user names by their text: one line, a file of lines, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from clgraft.core import problem
from clgraft.core.problem import parse
from clgraft.plugins.command_line import events

STDIN = "-"


def kinds() -> list[str]:
    """Return the words that start a problem."""
    return sorted(problem.kinds())


def read(word: str) -> list[str] | None:
    """Return the problems that a word of the command line names, in full and each once.

    Parameters
    ----------
    word : str
        The text of a problem, a line of ``CLGRAFT_VERBOSE``, a file of either, or ``-`` for such lines on stdin.

    Returns
    -------
    list of str or None
        None if the word is none of these.

    Raises
    ------
    ProblemError
        If a line cannot be read.
    """
    event = events.parse(word)
    if event is not None:
        return [str(parse(event.problem))]
    words = word.split()
    if len(words) > 1 and words[0] in kinds():
        return [str(parse(word))]
    if word == STDIN:
        return from_lines(sys.stdin)
    path = Path(word)
    if path.is_file():
        return from_lines(path.read_text(encoding="utf-8", errors="replace").splitlines())
    return None


def from_lines(lines: Iterable[str]) -> list[str]:
    """Return the problems of lines.

    Where there are lines of ``CLGRAFT_VERBOSE`` the others are left out, as they are what a program printed between
    them. Else every line is a problem, with or without a name before a colon; ``#`` begins a comment.
    """
    texts = list(lines)
    found = [event.problem for event in events.read(texts)]
    if found:  # a compiled graph has lines, too, but is no problem
        found = [text for text in found if text.split()[0] in kinds()]
    else:
        for line in texts:
            text = line.split("#")[0].strip()
            if text and text.split()[0] not in kinds():
                text = text.partition(":")[2].strip()
            if text:
                found.append(text)
    return list(dict.fromkeys(str(parse(text)) for text in found))
