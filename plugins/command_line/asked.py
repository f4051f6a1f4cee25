"""What a user asks `clgraft profile` and `clgraft warm` to run: one model, or problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from clgraft.plugins import registry
from clgraft.plugins.command_line import problem_text
from clgraft.plugins.plugin import PluginError


def is_model(word: str) -> bool:
    """Return whether a word of the command line is the file of a plugin's model."""
    path = Path(word)
    return path.is_file() and any(plugin.recognises(path) for plugin in registry.plugins())


def model(words: Sequence[str], command: str) -> Path | None:
    """Return the model that words name, or None if they name problems.

    Raises
    ------
    PluginError
        If a model is not alone.
    """
    models = [word for word in words if is_model(word)]
    if models and len(words) > 1:
        raise PluginError(f"[{command}] got {models[0]} and other words, expected one model alone")
    return Path(models[0]) if models else None


def problems(words: Iterable[str], command: str) -> list[str]:
    """Return the text of the problems that words name, each once.

    Raises
    ------
    PluginError
        If a word names none.
    """
    found: dict[str, None] = {}
    for word in words:
        texts = problem_text.read(word)
        if texts is None:
            expected = f"a problem of {problem_text.kinds()}, a file of problems or a model"
            raise PluginError(f"[{command}] got {word!r}, expected {expected} ({registry.known_models()})")
        found.update(dict.fromkeys(texts))
    if not found:
        raise PluginError(f"[{command}] got no problem in {' '.join(words)}, expected at least one")
    return list(found)


def refuse_options_of_models(command: str, **given: object) -> None:
    """Raise `PluginError` if one of a model's options was given, by its name, and there is no model."""
    wrong = [f"--{name}" for name, value in given.items() if value]
    if wrong:
        raise PluginError(f"[{command}] got {wrong[0]} without a model, expected it with one")
