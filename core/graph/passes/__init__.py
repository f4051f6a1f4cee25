"""Passes: each is a function from a graph to one that computes the same with less work.

``CLGRAFT_GRAPH=-fold,-chains`` switches passes off; ``CLGRAFT_GRAPH=-all,dead`` runs none but ``dead``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from clgraft.core import settings
from clgraft.core.errors import ArgumentError, hint
from clgraft.core.graph.passes.argmax import keep_argmax
from clgraft.core.graph.passes.autocast import mix_passes, mix_types
from clgraft.core.graph.passes.biases import join_biases
from clgraft.core.graph.passes.casts import join_casts
from clgraft.core.graph.passes.chains import join_chains
from clgraft.core.graph.passes.dead import drop_dead, needed
from clgraft.core.graph.passes.duplicates import drop_duplicates
from clgraft.core.graph.passes.epilogues import fuse_epilogues
from clgraft.core.graph.passes.fold import fold_batch_norms
from clgraft.core.graph.passes.gradients import join_gradients
from clgraft.core.graph.passes.layouts import Assignment, Preferences, assign_layouts, settled
from clgraft.core.graph.passes.masks import read_results
from clgraft.core.graph.passes.norms import join_norms
from clgraft.core.graph.passes.order import order_gradients
from clgraft.core.graph.passes.parts import split_batch
from clgraft.core.graph.passes.recompute import recompute
from clgraft.core.graph.passes.residuals import join_residuals
from clgraft.core.graph.passes.scales import scaled_norms
from clgraft.core.graph.passes.separable import join_separable
from clgraft.core.graph.passes.totals import join_totals
from clgraft.core.graph.passes.turning import Image
from clgraft.core.graph.passes.updates import MOST_ON_CPUS, join_updates
from clgraft.core.graph.structure import Fits, Node, Some, Structure
from clgraft.core.operators.gradients import GradientsProblem
from clgraft.core.operators.pointwise import PointwiseProblem
from clgraft.core.problem import Problem
from clgraft.core.problem.layout import FIRST, LAST

PASSES: dict[str, Callable[[Structure], Structure]] = {
    "dead": drop_dead,
    "duplicates": drop_duplicates,
    "fold": fold_batch_norms,
    "argmax": keep_argmax,
    "layouts": assign_layouts,
    "norms": join_norms,
    "biases": join_biases,
    "masks": read_results,
    "chains": join_chains,
}
# these ask a device which problems its kernels serve; they run after the others
FITTING: dict[str, Callable[[Structure, Fits], Structure]] = {
    "residuals": join_residuals,
    "epilogues": fuse_epilogues,
    "separable": join_separable,
    "gradients": join_gradients,
}
# the memory plan asks for these: conversions, updates and sums of several arrays at once, segments in parts of the
# batch, copies as views, norms that take sums of the layers before them, values that are computed again where memory is
# short, another order, launches that run once to prepare constants, and a second queue
PLANNED = (
    "casts",
    "updates",
    "totals",
    "parts",
    "views",
    "statistics",
    "sums",
    "recompute",
    "order",
    "prepare",
    "queues",
)
BEFORE_GRADIENTS = ("scales",)  # `core.nn.Build` runs it before gradients are derived
NAMES = (*BEFORE_GRADIENTS, *PASSES, *FITTING, *PLANNED)
# these run before the types are mixed, so that weights are folded in float32; that is no pass which can be switched off
IN_ONE_TYPE, MIXED = ("dead", "duplicates", "fold"), "types"

__all__ = [
    "FITTING",
    "MOST_ON_CPUS",
    "NAMES",
    "PASSES",
    "PLANNED",
    "Image",
    "Preferences",
    "assign_layouts",
    "drop_dead",
    "drop_duplicates",
    "fold_batch_norms",
    "fuse_epilogues",
    "join_biases",
    "join_casts",
    "join_chains",
    "join_gradients",
    "join_norms",
    "join_passes",
    "join_residuals",
    "join_separable",
    "join_totals",
    "join_updates",
    "keep_argmax",
    "mix_passes",
    "mix_types",
    "needed",
    "optimise",
    "order_gradients",
    "read_results",
    "recompute",
    "scaled_norms",
    "settled",
    "split_batch",
    "suit_single",
    "switched_on",
]


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
    text = settings.GRAPH.text() if switches is None else switches
    on, known = dict.fromkeys(NAMES, True), [*NAMES, "all"]
    for word in filter(None, (part.strip() for part in text.split(","))):
        name = word.lstrip("-")
        if name not in known:
            expected = f"names of {known} or -name{hint(name, known)}"
            raise ArgumentError(f"[graph] got pass {word!r} in {text!r}, expected {expected}")
        for each in NAMES if name == "all" else (name,):
            on[each] = not word.startswith("-")
    return tuple(name for name, runs in on.items() if runs)


def optimise(
    graph: Some,
    switches: str | None = None,
    fits: Fits | None = None,
    counts: dict[str, int] | None = None,
    constants: Collection[str] | None = None,
    mixed: str | None = None,
    preferences: Preferences | None = None,
    last: Mapping[str, Image] | None = None,
) -> Some:
    """Return the graph after all passes that are switched on, but for those of the memory plan.

    Parameters
    ----------
    graph : Graph
    switches : str, optional
        See `switched_on`.
    fits : callable, optional
        Whether kernels of a device serve a problem as well as its parts; without it, passes that ask do not run.
    counts : dict, optional
        Gets the number of problems that each pass joined to others or dropped; of `layouts` the number of conversions
        and, as ``nhwc``, that of problems in channels last.
    constants : collection of str, optional
        Inputs that never change; by default nothing is known about that.
    mixed : str, optional
        The type of 16 bits that products have (see `mix_types`).
    preferences : Preferences, optional
        What a device prefers in channels last; by default nothing.
    last : mapping of str to Image, optional
        Inputs and outputs that lie in channels last (see `settled`).
    """
    names = switched_on(switches)
    if last and (preferences is None or "layouts" not in names):
        got = f"values {sorted(last)} in channels last"
        raise ArgumentError(f"[graph] got {got}, expected none without the pass layouts")
    first = [name for name in names if name in IN_ONE_TYPE]
    for name in (*first, MIXED, *(name for name in names if name not in first)):
        before = graph
        if name == MIXED:
            graph = graph if mixed is None else mix_types(graph, mixed)
            continue
        if name == "layouts":
            if preferences is None:
                continue
            assignment = Assignment(graph, preferences, last)
            graph = assignment.graph(graph)
            if counts is not None and (assignment.last or last):
                counts[name] = assignment.conversions
                counts[LAST] = len(assignment.last)
            continue
        if name == "fold":
            graph = fold_batch_norms(graph, constants, fits)
        elif name in PASSES:
            graph = PASSES[name](graph)  # type: ignore[assignment]
        elif name in FITTING and fits is not None:
            graph = FITTING[name](graph, fits)  # type: ignore[assignment]
        if counts is not None and graph is not before:
            counts[name] = _size(before, name) - _size(graph, name)
    return graph


def join_passes(graph: Structure, count: int, switches: str | None = None) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the nodes of a forward and of a backward pass after those graph passes that have to see both.

    Parameters
    ----------
    graph : Graph
        Of both.
    count : int
        How many of the nodes are forward ones.
    switches : str, optional
        See `switched_on`.

    Returns
    -------
    forward, backward : tuple of Node
        Forward nodes write values of the same names as before, and what else the backward ones read. Of the graph's
        outputs these read none that they did not read before: a caller may not have kept it.
    """
    first = graph.nodes[:count]
    made, on = {name for node in first for name in node.writes if name not in node.changes}, switched_on(switches)
    unread = set(graph.outputs) - {name for node in graph.nodes[count:] for name in node.reads}
    graph = join_norms(graph) if "norms" in on else graph
    graph = read_results(graph, unread) if "masks" in on else graph
    nodes = graph.nodes
    count = max((i + 1 for i, node in enumerate(nodes) if made & set(node.writes) or node in first), default=0)
    return nodes[:count], nodes[count:]


def _has_planes(problem: Problem) -> bool:
    """Return whether the gradients of a convolution are of images with channels first."""
    return isinstance(problem, GradientsProblem) and problem.conv.layout == FIRST


def suit_single(graph: Some, training: bool) -> Some:
    """Return a graph of a single operator and its gradient with the problems that suit it when it runs node by node.

    When training, the forward nodes keep what makes the backward ones faster. They stay as many, and the bits stay the
    same.
    """
    graph = join_gradients(graph, _has_planes)
    return keep_argmax(graph) if training else graph


def _size(graph: Structure, name: str) -> int:
    """Return the number of a graph's problems; those on weights, which `fold` adds, do not count there."""
    return sum(name != "fold" or not isinstance(node.problem, PointwiseProblem) for node in graph.nodes)
