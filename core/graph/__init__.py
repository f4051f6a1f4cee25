"""Graphs: problems that share named values, run as one call with their values on the device."""

from clgraft.core.graph.compiled import CompiledGraph
from clgraft.core.graph.copies import Copies
from clgraft.core.graph.differentiate import gradients
from clgraft.core.graph.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph.passes import optimise, suit_single
from clgraft.core.graph.report import Report
from clgraft.core.graph.requests import hand_over_text
from clgraft.core.graph.structure import Node, Value

__all__ = [
    "CompiledGraph",
    "Copies",
    "Graph",
    "GraphBuilder",
    "Node",
    "Report",
    "Value",
    "gradients",
    "hand_over_text",
    "optimise",
    "parse_graph",
    "suit_single",
]
