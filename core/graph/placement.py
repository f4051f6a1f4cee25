"""Plans a graph's launches in one arena, and computes values again where there is no room for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from clgraft.core.errors import ProblemError
from clgraft.core.graph.assembly import Assembly, Chooser
from clgraft.core.graph.graph import Graph
from clgraft.core.graph.passes import order_gradients, recompute
from clgraft.core.planning.launches import Launches

# of the memory, that values may take in attempts to compute few of them again: workspaces and gaps need the rest
RECOMPUTED_SHARES = (0.9, 0.7, 0.5, 0.0)
# of the memory, that an arena may take where nodes run on a second queue: without one it is smaller
QUEUES_SHARE = 0.5


@dataclass(frozen=True)
class Placed:
    """A graph with its launches, the bytes of their arena, and the number of values that it computes again."""

    graph: Graph
    assembly: Assembly
    launches: Launches
    arena: int
    recomputed: int

    @property
    def kept(self) -> int:
        """Bytes of what is prepared once and stays in memory, such as packed weights."""
        return sum(self.assembly.preparation.sizes.values())


@dataclass(frozen=True)
class Placement:
    """Ways to place a graph in memory.

    Attributes
    ----------
    graph : Graph
        After its passes, without values that are computed again.
    context : Chooser
    added : frozenset of str
        Outputs that a run adds to.
    constants : frozenset of str
        Inputs that never change.
    passes : collection of str
        Those that are switched on; of these, `order`, `views`, `statistics`, `sums`, `prepare`, `recompute` and
        `queues` matter.
    on_device : frozenset of str
        Inputs, states and outputs that are in memory of the device in every run.
    """

    graph: Graph
    context: Chooser
    added: frozenset[str]
    constants: frozenset[str]
    passes: Collection[str]
    on_device: frozenset[str] = frozenset()

    def attempts(self, limit: int, strict: bool) -> Iterator[Placed]:
        """Yield ways to place the graph, each in less memory than the one before, which the device refused.

        Values are computed again first; if that is not enough, weights are packed in every run instead of being kept.

        Parameters
        ----------
        limit : int
            Bytes that the first arena should not exceed.
        strict : bool
            Whether it must not.

        Raises
        ------
        ProblemError
            If the arena is larger than a strict limit even with values computed again.
        """
        first = self._within(limit)
        if first.assembly.lanes is not None:
            if first.arena <= QUEUES_SHARE * limit:
                yield first
            yield from replace(self, passes=frozenset(self.passes) - {"queues"}).attempts(limit, strict)
            return
        if strict and first.arena > limit:
            raise ProblemError(f"[graph] got memory for {limit} bytes, expected at least {first.arena}")
        smallest = first
        for smallest in self._smaller(first):
            yield smallest
        if smallest.kept:
            unprepared = replace(self, passes=frozenset(self.passes) - {"prepare"})
            most = smallest.arena + smallest.kept
            placed = unprepared._placed(self.graph)
            smaller = placed if placed.arena < most else unprepared._recomputed(0, most)
            if smaller:
                yield from unprepared._smaller(smaller)

    def _smaller(self, first: Placed) -> Iterator[Placed]:
        """Yield a way to place the graph, then others with a smaller arena each."""
        placed: Placed | None = first
        while placed is not None:
            yield placed
            arena = placed.arena
            smaller = (self._recomputed(int(share * arena), arena) for share in RECOMPUTED_SHARES)
            placed = next(filter(None, smaller), None)

    def _within(self, limit: int) -> Placed:
        """Return a graph whose arena fits a limit; if there is none, the graph with the smallest arena."""
        placed = self._placed(self.graph)
        for share in RECOMPUTED_SHARES:
            if placed.arena <= limit:
                break
            placed = self._recomputed(int(share * limit), placed.arena) or placed
        return placed

    def _recomputed(self, enough: int, arena: int) -> Placed | None:
        """Return a graph that computes values again; None if its arena is no smaller than the one at hand."""
        other = recompute(self.graph, enough) if "recompute" in self.passes else self.graph
        if other is self.graph:
            return None
        placed = self._placed(other)
        return placed if placed.arena < arena else None

    def _placed(self, graph: Graph) -> Placed:
        constants = self.constants if "prepare" in self.passes else frozenset()
        graph = order_gradients(graph) if "order" in self.passes else graph
        queues = "queues" in self.passes and self.context.device.overlaps_queues
        views = "views" in self.passes
        assembly = Assembly(graph, self.context, self.added, views, constants, self.passes, queues, self.on_device)
        launches, arena = assembly.launches()
        return Placed(graph, assembly, launches, arena, len(graph.nodes) - len(self.graph.nodes))
