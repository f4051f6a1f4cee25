"""Plans of graphs for callers that know them as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from clgraft.core.errors import ProblemError
from clgraft.core.graph.compiled import CompiledGraph, Context
from clgraft.core.graph.graph import parse_graph


def hand_over_text(
    context: Context,
    text: str,
    gradients: str = "",
    outputs: str = "",
    passes: str | None = None,
    precision: str | None = None,
) -> Any:
    """Return the C runtime's handle of a new plan for a graph, which the caller owns.

    Parameters
    ----------
    context : Context
    text : str
        The graph (see `parse_graph`).
    gradients : str, optional
        Names of inputs, between spaces: the plan is of ``graph.gradients(names)``.
    outputs : str, optional
        Names of the outputs that runs compute, between spaces; ``NAME+`` is added to. By default all are overwritten.
    passes : str, optional
        Switches of passes.
    precision : str, optional
        Of products of float32: ``float32``, ``float16`` or ``bfloat16``; by default what ``CLGRAFT_PRECISION`` says.

    Raises
    ------
    ProblemError
        If the text cannot be read, a name is unknown, or the device cannot serve a problem.
    ArgumentError
        If there is no such pass or precision.
    """
    graph = parse_graph(text)
    if gradients.split():
        graph = graph.gradients(gradients.split())
    words = outputs.split() or list(graph.outputs)
    wanted = [word[:-1] if word.endswith("+") else word for word in words]
    counts, known = Counter(wanted), set(graph.outputs)
    for name, count in counts.items():
        if name not in known or count > 1:
            raise ProblemError(
                f"[graph] got output {name!r} in {outputs!r}, expected each of {list(graph.outputs)} once"
            )
    added = {word[:-1] for word in words if word.endswith("+")}
    return CompiledGraph(graph, context, passes, precision=precision).hand_over(wanted, added)
