"""What a graph's plan is made of: all that planning finds out, without memory, programs and handles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clgraft.core.graph.graph import Graph
from clgraft.core.graph.prepared import Preparation
from clgraft.core.graph.report import Report
from clgraft.core.planning.launches import Launches
from clgraft.core.problem import Argument


@dataclass(frozen=True)
class Signature:
    """What a compiled graph takes, in the form in which a plan asks a problem for it.

    Attributes
    ----------
    taken : tuple of Argument
    numbers : tuple of str
        The names of the scalars.
    added : frozenset of str
        Outputs that runs add to.
    shown : tuple of str
        What the arguments are called in the C runtime.
    text : str
    details : str
        What a plan's description says after its first line.
    """

    taken: tuple[Argument, ...]
    numbers: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    shown: tuple[str, ...] = ()
    text: str = ""
    details: str = ""
    kind: str = "graph"

    @classmethod
    def of(
        cls,
        graph: Graph,
        added: frozenset[str] = frozenset(),
        shown: Graph | None = None,
        unread: Collection[str] = (),
        kept: tuple[Argument, ...] = (),
        copies: Mapping[str, str] | None = None,
    ) -> Signature:
        """Return the signature of a graph.

        Parameters
        ----------
        graph : Graph
        added : frozenset of str
            Outputs that runs add to.
        shown : Graph, optional
            The graph before its passes, which may see outputs in other shapes.
        unread : collection of str
            Constants that no launch reads.
        kept : tuple of Argument
            What was prepared from constants.
        copies : mapping of str to str, optional
            Inputs that are outputs, with the names of their copies: a copy is called as that input.
        """
        sources = {copy: name for name, copy in (copies or {}).items()}
        values = (shown or graph).values
        results = ((name, values[sources.get(name, name)]) for name in graph.outputs)
        taken = (
            *(Argument(v.name, "in", v.shape, v.dtype) for v in graph.inputs if v.name not in unread),
            *kept,
            *(Argument(value.name, "inout", value.shape, value.dtype) for value in graph.states),
            *(Argument(name, "out", value.shape, value.dtype) for name, value in results),
        )
        outputs = (sources.get(name, name) for name in graph.outputs)
        text = f"graph of {len(graph.nodes)} problems -> {' '.join(outputs)}"
        names = tuple(sources.get(argument.name, argument.name) for argument in taken)
        return cls(taken, graph.scalars, added, names, text)

    def modes(self) -> tuple[str, ...]:
        """Return the one mode that each argument may have; problems without this method leave the choice to a run."""
        return tuple("ACCUMULATE" if argument.name in self.added else "OVERWRITE" for argument in self.taken)

    def shown_names(self) -> tuple[str, ...]:
        """Return the names of the arguments in the C runtime: a copy of an input has the name of that input."""
        return self.shown

    def arguments(self) -> tuple[Argument, ...]:
        """Return inputs, what was prepared from constants, states, and outputs in the shape of the graph as given."""
        return self.taken

    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that every run needs."""
        return self.numbers

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Recipe:
    """What a graph's plan is made of.

    Attributes
    ----------
    signature : Signature
    launches : Launches
    preparation : Preparation
        What runs once before the plan, after `early`.
    report : Report
    constants : tuple of str
        The graph's constants that one of the three reads.
    early : Recipe, optional
        What computes those arguments once that follow from constants alone.
    """

    signature: Signature
    launches: Launches
    preparation: Preparation
    report: Report
    constants: tuple[str, ...] = ()
    early: Recipe | None = None
