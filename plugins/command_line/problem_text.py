"""Problems that a user names by their text: one line, a file of lines, or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from clgraft.core import problem
from clgraft.core.files import STDIN, FileError, is_stream, read_file
from clgraft.core.problem import parse
from clgraft.plugins.command_line import events


def kinds() -> list[str]:
    """Return the words that start a problem."""
    return sorted(problem.kinds())


def is_problem(word: str) -> bool:
    """Return whether a word is the text of a problem or a line of ``CLGRAFT_VERBOSE``; it may have faults."""
    first, *others = word.split() or [""]
    return (bool(others) and first in kinds()) or events.parse(word) is not None


def read(word: str, command: str = "problem") -> list[str] | None:
    """Return the problems that a word of the command line names, in full and each once.

    Parameters
    ----------
    word : str
        The text of a problem, a line of ``CLGRAFT_VERBOSE``, a file of either, or ``-`` for such lines on stdin.
    command : str
        What errors start with.

    Returns
    -------
    list of str or None
        None if the word is none of these.

    Raises
    ------
    FileError
        If a file cannot be read as text.
    ProblemError
        If a line cannot be read.
    """
    event = events.parse(word)
    if event is not None:
        return [str(parse(event.problem))]
    if is_problem(word):
        return [str(parse(word))]
    if word == STDIN:
        return from_lines(sys.stdin)
    path = Path(word)
    if os.path.isfile(path) or is_stream(path):  # False for a text that is too long for a name, too
        data = read_file(path, command, "a file of problems")
        if b"\0" in data:
            raise FileError(f"[{command}] got {path}, which is binary; expected a file of problems")
        return from_lines(data.decode("utf-8", "replace").splitlines())
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
