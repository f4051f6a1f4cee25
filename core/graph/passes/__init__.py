"""Passes: each is a function from a graph to one that computes the same with less work.

``CLGRAFT_GRAPH=-fold,-chains`` switches passes off; ``CLGRAFT_GRAPH=-all,dead`` runs none but ``dead``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from clgraft.core.errors import ArgumentError
from clgraft.core.graph.passes.chains import join_chains
from clgraft.core.graph.passes.dead import drop_dead
from clgraft.core.graph.passes.duplicates import drop_duplicates
from clgraft.core.graph.passes.fold import fold_batch_norms
from clgraft.core.graph.structure import Some, Structure

VARIABLE = "CLGRAFT_GRAPH"
PASSES: dict[str, Callable[[Structure], Structure]] = {
    "dead": drop_dead,
    "duplicates": drop_duplicates,
    "fold": fold_batch_norms,
    "chains": join_chains,
}

__all__ = ["PASSES", "drop_dead", "drop_duplicates", "fold_batch_norms", "join_chains", "optimise"]


def switched_on(switches: str | None = None) -> tuple[str, ...]:
    """Return the names of the passes that run, in order.

    Parameters
    ----------
    switches : str, optional
        Names with ``-`` are switched off, names without are switched on, ``all`` means every pass; by default what
        ``CLGRAFT_GRAPH`` holds.

    Raises
    ------
    ArgumentError
        If a name is unknown.
    """
    text = os.environ.get(VARIABLE, "") if switches is None else switches
    on = dict.fromkeys(PASSES, True)
    for word in filter(None, (part.strip() for part in text.split(","))):
        name = word.lstrip("-")
        if name not in (*PASSES, "all"):
            raise ArgumentError(f"[graph] got pass {word!r} in {text!r}, expected names of {[*PASSES, 'all']} or -name")
        for each in PASSES if name == "all" else (name,):
            on[each] = not word.startswith("-")
    return tuple(name for name, runs in on.items() if runs)


def optimise(graph: Some, switches: str | None = None) -> Some:
    """Return the graph after all passes that are switched on (see `switched_on`)."""
    for name in switched_on(switches):
        graph = PASSES[name](graph)  # type: ignore[assignment]
    return graph
