"""What a user asks to tune: the text of problems, a set's name, an operator, or a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clgraft.core.problem import parse
from clgraft.core.tuning import problem_sets
from clgraft.plugins import registry
from clgraft.plugins.command_line import asked, problem_text
from clgraft.plugins.command_line.tune import supervise
from clgraft.plugins.command_line.tune.supervise import TuneError
from clgraft.plugins.plugin import with_regions


@dataclass(frozen=True)
class Options:
    """How sets and models are read.

    Attributes
    ----------
    directions : str
        ``all`` or ``forward``: whether the gradients of sets, operators and models are included.
    batch : int, optional
        Batch size instead of the sets' own.
    shapes : mapping
        Shapes of the inputs that a model does not hold, by name.
    device : str, optional
    regions : bool
        Whether models are swapped with regions.
    """

    directions: str = "all"
    batch: int | None = None
    shapes: dict[str, list[int]] = field(default_factory=dict)
    device: str | None = None
    regions: bool = False


def problems(words: Sequence[str], options: Options) -> list[str]:
    """Return the problems' texts, each once.

    Raises
    ------
    TuneError
        If a word is none of what can be tuned.
    FileError
        If a word names a file that cannot be read or holds no problem.
    ProblemError
        If a line of a file cannot be read.
    """
    asked.expect_files((word for word in words if word not in problem_sets.names()), "tune")
    if not any(map(asked.is_model, words)):
        asked.refuse_options_of_models("tune", shape=options.shapes, regions=options.regions)
    found = list(dict.fromkeys(text for word in words for text in _of(word, options)))
    if not found:
        raise TuneError(f"[tune] got no problem in {' '.join(words)}, expected at least one")
    return found


def _of(word: str, options: Options) -> Iterable[str]:
    kinds, sets = problem_text.kinds(), problem_sets.names()
    if word in sets:
        return _expand(problem_sets.lines(word).values(), options)
    if word in kinds:
        lines = (text for name in sets for text in problem_sets.lines(name).values())
        return _expand((text for text in lines if text.split()[0] == word), options)
    if asked.is_model(word):
        task = registry.find(Path(word), "tune").problems(Path(word), options.shapes, options.directions == "all")
        return supervise.collect(with_regions(task, options.regions), options.device)
    found = asked.read(word, "tune")
    if found is None:
        expected = f"a problem, a set {sets}, an operator {kinds}, a file of problems, - or a model"
        raise TuneError(f"[tune] got {word!r}, expected {expected}{asked.near(word, [*sets, *kinds])}")
    return found


def _expand(texts: Iterable[str], options: Options) -> Iterator[str]:
    """Return problems of a set, which are forward, with their gradients' problems."""
    for text in texts:
        problem: Any = parse(text)
        if options.batch is not None:
            problem = replace(problem, batch=options.batch)
        yield str(problem)
        if options.directions == "all":
            yield from (str(gradient.problem) for gradient in problem.gradients())
