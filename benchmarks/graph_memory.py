"""Arenas of whole nets in training, without workspaces: with fewer passes, as planned, and with recomputation.

    python benchmarks/graph_memory.py resnet50 vgg16 --batch 32

Nothing is run and no device is needed.
"""

from __future__ import annotations

import argparse

from graph_nets import NETS, OnGraph
from progress import announced

from clgraft.core.graph import Graph
from clgraft.core.graph.homes import Homes
from clgraft.core.graph.memory import place
from clgraft.core.graph.passes import optimise, recompute


def arena(graph: Graph) -> int:
    """Return the bytes of the values inside of a graph, in one arena."""
    outside = {value.name for value in (*graph.inputs, *graph.states)} | set(graph.outputs)
    return place(Homes.of(graph, outside, ()).lives(graph))[1]


def main() -> None:
    """Plan the nets that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=list(NETS), help=f"of {list(NETS)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    options = parser.parse_args()
    for net in announced(options.nets):
        on = OnGraph(options.batch, True)
        logits = NETS[net](on, options.size)
        graph = on.builder.graph(logits).gradients(tuple(on.parameters))
        values = sum(graph.values[name].nbytes for name in graph.writers)
        before, graph = optimise(graph, "-norms,-masks"), optimise(graph)
        again = recompute(graph)
        sizes = [f"{arena(g) / 2**20:.0f} MiB ({arena(g) / values:.2f} of all values)" for g in (before, graph, again)]
        count = len(again.nodes) - len(graph.nodes)
        print(f"{net}: {sizes[0]}; with norms and masks {sizes[1]}; {count} values computed again {sizes[2]}")


if __name__ == "__main__":
    main()
