"""What a user asks to tune: a problem's text, a set's name, an operator, a file of lines, or a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clgraft.core.problem import kinds, parse
from clgraft.core.tuning import problem_sets
from clgraft.plugins.command_line.tune import supervise
from clgraft.plugins.command_line.tune.supervise import TuneError
from clgraft.plugins.registry import plugins

COLLECTORS = {"caffe": "clgraft.plugins.caffe.tune", "mxnet": "clgraft.plugins.mxnet.tune"}


@dataclass(frozen=True)
class Options:
    """How sets and models are read.

    Attributes
    ----------
    directions : str
        ``all`` or ``forward``, of sets and operators, and of models whether they are trained.
    batch : int, optional
        Instead of the sets' own.
    shapes : mapping
        Of a symbol's inputs.
    """

    directions: str = "all"
    batch: int | None = None
    shapes: dict[str, list[int]] = field(default_factory=dict)
    device: str | None = None


def problems(words: Sequence[str], options: Options) -> list[str]:
    """Give the problems' texts, each once.

    Raises
    ------
    TuneError
        If a word is none of what can be tuned.
    ProblemError
        If a line of a file cannot be read.
    """
    found = (text for word in words for text in _of(word, options))
    return list(dict.fromkeys(found))


def _of(word: str, options: Options) -> Iterable[str]:
    known = sorted(kinds())
    if word.split() and word.split()[0] in known and len(word.split()) > 1:
        return [str(parse(word))]
    sets = problem_sets.names()
    if word in sets:
        return _expand(problem_sets.lines(word).values(), options)
    if word in known:
        lines = (text for name in sets for text in problem_sets.lines(name).values())
        return _expand((text for text in lines if text.split()[0] == word), options)
    path = Path(word)
    if not path.is_file():
        expected = f"a problem, a set {sets}, an operator {known}, a file of problems or a model"
        raise TuneError(f"[tune] got {word!r}, expected {expected}")
    for plugin in plugins():
        if plugin.recognises(path) and plugin.name in COLLECTORS:
            arguments: dict[str, Any] = {"path": word, "training": options.directions == "all"}
            if plugin.name == "mxnet":
                arguments["shapes"] = options.shapes
            return supervise.collect(COLLECTORS[plugin.name], arguments, options.device)
    return _lines(path)


def _lines(path: Path) -> Iterator[str]:
    """Read lines of problems, with or without a name before a colon; as they are, in no other direction."""
    for line in path.read_text().splitlines():
        text = line.split("#")[0].strip()
        if text and text.split()[0] not in kinds():
            text = text.partition(":")[2].strip()
        if text:
            yield str(parse(text))


def _expand(texts: Iterable[str], options: Options) -> Iterator[str]:
    """Give problems of a set, which are forward, with their gradients' problems."""
    for text in texts:
        problem: Any = parse(text)
        if options.batch is not None:
            problem = replace(problem, batch=options.batch)
        yield str(problem)
        if options.directions == "all":
            yield from (str(gradient.problem) for gradient in problem.gradients())
