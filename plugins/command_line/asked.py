"""What a user asks `clgraft tune`, `profile`, `warm` and `bench` to run: models, or problems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from clgraft.core.errors import hint
from clgraft.core.files import FileError, expect_file
from clgraft.plugins import registry
from clgraft.plugins.command_line import problem_text
from clgraft.plugins.plugin import PluginError

_FILE = re.compile(r"\S*\.[A-Za-z]\w*|\S*/\S*")  # words with an ending, or in a folder


def is_model(word: str) -> bool:
    """Return whether a word of the command line is the file of a plugin's model."""
    path = Path(word)
    return os.path.isfile(path) and any(plugin.recognises(path) for plugin in registry.plugins())


def expect_files(words: Iterable[str], command: str) -> None:
    """Raise `FileError` if a word names a file, by its form, and there is none that can be read."""
    for word in words:
        if word in ("", problem_text.STDIN, *problem_text.kinds()) or problem_text.is_problem(word):
            continue
        path = Path(word)
        if os.path.isdir(path) or _FILE.fullmatch(word):
            expect_file(path, command, "a file of problems or a model", streams=True)


def model(words: Sequence[str], command: str) -> Path | None:
    """Return the model that words name, or None if they name problems.

    Raises
    ------
    FileError
        If a word names a file that cannot be read.
    PluginError
        If a model is not alone.
    """
    expect_files(words, command)
    models = [word for word in words if is_model(word)]
    if models and len(words) > 1:
        raise PluginError(f"[{command}] got {models[0]} and other words, expected one model alone")
    return Path(models[0]) if models else None


def problems(words: Iterable[str], command: str) -> list[str]:
    """Return the text of the problems that words name, each once.

    Raises
    ------
    FileError
        If a file holds no problem.
    PluginError
        If a word names none.
    """
    found: dict[str, None] = {}
    for word in words:
        texts = read(word, command)
        if texts is None:
            kinds = problem_text.kinds()
            expected = f"a problem of {kinds}, a file of problems or a model ({registry.known_models()})"
            raise PluginError(f"[{command}] got {word!r}, expected {expected}{near(word, kinds)}")
        found.update(dict.fromkeys(texts))
    return list(found)


def read(word: str, command: str) -> list[str] | None:
    """Return the problems that a word names, at least one (see `problem_text.read`), or None if it names none.

    Raises
    ------
    FileError
        If it is a file, or standard input, without problems.
    """
    texts = problem_text.read(word, command)
    if texts == []:
        name = "standard input" if word == problem_text.STDIN else word
        raise FileError(f"[{command}] got no problem in {name}, expected lines of problems or of CLGRAFT_VERBOSE")
    return texts


def near(word: str, known: Iterable[str]) -> str:
    """Return the end of an error for a word that is none of what is known: what is nearest to its first part."""
    return hint((word.split() or [""])[0], known)


def refuse_options_of_models(command: str, **given: object) -> None:
    """Raise `PluginError` if one of a model's options was given, by its name, and there is no model."""
    wrong = [f"--{name}" for name, value in given.items() if value]
    if wrong:
        raise PluginError(f"[{command}] got {wrong[0]} without a model, expected it with one")
