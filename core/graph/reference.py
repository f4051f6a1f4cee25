"""What a graph computes, from the float64 references of its problems."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clgraft.core.graph.structure import Structure
from clgraft.core.problem import in_float64


def evaluate(
    graph: Structure, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Compute every value of a graph in float64 with NumPy.

    Parameters
    ----------
    graph : Graph
    arrays : mapping of str to numpy.ndarray
        Inputs and states by name; they are not changed.
    scalars : mapping of str to float, optional
        All of the graph's scalars.

    Returns
    -------
    dict of str to numpy.ndarray
        All values by name; states as the last node left them.
    """
    numbers = dict(scalars or {})
    values = in_float64(arrays)
    for node in graph.nodes:
        arguments = node.problem.arguments()
        given = {
            argument.name: values[name].reshape(argument.shape)
            for argument, name in zip(arguments, node.arguments)
            if argument.role != "out"
        }
        own = {
            name: numbers[value] if isinstance(value, str) else value
            for name, value in zip(node.problem.scalars(), node.scalars)
        }
        results = node.problem.reference(given, own)
        for argument, name in zip(arguments, node.arguments):
            if argument.role != "in":
                values[name] = results[argument.name].reshape(argument.shape)
    return values
