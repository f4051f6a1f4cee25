"""The problems of a model: what its graph plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clgraft.core.model import samples
from clgraft.core.problem import Problem, parse
from clgraft.plugins.command_line import lone_run
from clgraft.plugins.onnx.session import Session


def problems(
    path: str, shapes: Mapping[str, Sequence[int]], passes: int = 1, regions: bool = True
) -> tuple[Problem, ...]:
    """Return the problems of a model's graph after the passes.

    Parameters
    ----------
    path : str
    shapes : mapping
        Shapes of the inputs that the model does not fix.
    passes : int
        How often the model, and each problem alone, is run on random numbers if it is more than once.
    regions : bool
        Changes nothing: the whole model is one graph.
    """
    session = Session(path)
    report = session.report(shapes)
    if passes > 1:
        given = samples.inputs(session, shapes)
        calls = [lambda: session.run(given), *(lone_run.bind(parse(text)) for text, _ in report.algorithms)]
        for call in calls:
            for _ in range(passes):
                call()
    return tuple(dict.fromkeys(parse(text) for text, _ in report.algorithms))
