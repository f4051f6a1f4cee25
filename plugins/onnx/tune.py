"""The problems of a model: what its graph plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clgraft.core.problem import Problem, parse
from clgraft.plugins.command_line import lone_run
from clgraft.plugins.onnx.session import Session


def problems(path: str, shapes: Mapping[str, Sequence[int]], passes: int = 1) -> tuple[Problem, ...]:
    """Return the problems of a model's graph after the passes.

    Parameters
    ----------
    path : str
    shapes : mapping
        Shapes of the inputs that the model does not fix.
    passes : int
        How often each problem is run on random numbers, one by one, if it is more than once.
    """
    report = Session(path).report(shapes)
    found = tuple(dict.fromkeys(parse(text) for text, _ in report.algorithms))
    if passes > 1:
        for text, _ in report.algorithms:
            call = lone_run.bind(parse(text))
            for _ in range(passes):
                call()
    return found
