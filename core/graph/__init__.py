"""Graphs: problems that share named values, run as one call with their values on the device."""

from clgraft.core.graph.bound import BoundGraph
from clgraft.core.graph.calls import Call, arguments_of, graph_call, only_problem, single_call
from clgraft.core.graph.compiled import CompiledGraph
from clgraft.core.graph.copies import Copies
from clgraft.core.graph.differentiate import gradients
from clgraft.core.graph.graph import Graph, GraphBuilder, parse_graph
from clgraft.core.graph.passes import optimise, suit_single
from clgraft.core.graph.report import Report
from clgraft.core.graph.requests import hand_over_text
from clgraft.core.graph.structure import Node, Value

__all__ = [
    "BoundGraph",
    "Call",
    "CompiledGraph",
    "Copies",
    "Graph",
    "GraphBuilder",
    "Node",
    "Report",
    "Value",
    "arguments_of",
    "gradients",
    "graph_call",
    "hand_over_text",
    "only_problem",
    "optimise",
    "parse_graph",
    "single_call",
    "suit_single",
]
