"""Makes a scale and a shift of each channel the parameters of the batch norm in front of them.

Caffe has them as two layers. It runs before gradients are derived: those of the parameters are the norm's then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from clgraft.core.graph.structure import SKIPPED, Node, Structure
from clgraft.core.operators.batchnorm import BatchNormProblem
from clgraft.core.operators.pointwise import PointwiseProblem

TEXTS = {2: "y0 = x0 * x1;", 3: "y0 = x0 * x1 + x2;"}  # by the number of what is read


def scaled_norms(graph: Structure, constants: Mapping[str, np.ndarray]) -> dict[int, tuple[int, Node]]:
    """Return for each scale that a norm can have the number of the norm, and the norm with it.

    Parameters
    ----------
    graph : Graph
        Without gradients.
    constants : mapping of str to numpy.ndarray
        Inputs that never change.

    Returns
    -------
    dict of int to (int, Node)
        By the number of the scale's node, which goes.
    """
    found = {}
    for i, norm in enumerate(graph.nodes):
        j = _scale_of(graph, i, constants) if isinstance(norm.problem, BatchNormProblem) else None
        if j is None:
            continue
        _, *vectors = graph.nodes[j].reads
        names = {**norm.values, **dict(zip(("gamma", "beta"), vectors)), "y": graph.nodes[j].writes[0]}
        found[j] = i, replace(norm, arguments=tuple(names[a.name] for a in norm.problem.arguments()))
    return found


def _scale_of(graph: Structure, i: int, constants: Mapping[str, np.ndarray]) -> int | None:
    """Return the number of the node that alone reads a norm's result, if it is a scale that the norm can have."""
    norm = graph.nodes[i]
    problem = norm.problem
    assert isinstance(problem, BatchNormProblem)
    if problem.direction not in ("forward_training", "forward_inference") or problem.activation:
        return None
    y = norm.named("y")
    if y == SKIPPED or y in graph.outputs or len(graph.readers[y]) != 1 or problem.float32_parameters:
        return None
    if not (_filled(constants, norm.named("gamma"), 1) and _filled(constants, norm.named("beta"), 0)):
        return None
    (j,) = graph.readers[y]
    scale = graph.nodes[j]
    if scale.reads[0] != y or not _is_scale(scale, problem):
        return None
    vectors = scale.reads[1:]
    late = any(graph.writers.get(name, -1) > i for name in vectors)
    return None if y in vectors or late or graph.changes_between(vectors, i, j) else j


def _filled(constants: Mapping[str, np.ndarray], name: str, value: float) -> bool:
    return name in constants and not (constants[name] != value).any()


def _is_scale(node: Node, norm: BatchNormProblem) -> bool:
    """Return whether a node multiplies each channel by a number, and may add one."""
    problem = node.problem
    if not isinstance(problem, PointwiseProblem) or problem.dtype != norm.dtype or len(problem.inputs) not in TEXTS:
        return False
    if not problem.computes(TEXTS[len(problem.inputs)]):
        return False
    shape, *vectors = problem.inputs
    return shape == problem.common_shape and all(_along_channels(shape, vector, norm) for vector in vectors)


def _along_channels(shape: tuple[int, ...], vector: tuple[int, ...], norm: BatchNormProblem) -> bool:
    """Return whether a vector that broadcasts to a shape has a number for each of the norm's channels."""
    if math.prod(vector) != norm.channels or norm.channels == 1:
        return math.prod(vector) == norm.channels
    vector = (1,) * (len(shape) - len(vector)) + vector
    own = [axis for axis, size in enumerate(vector) if size != 1]
    return math.prod(shape[: own[0]]) == norm.batch and math.prod(shape[own[-1] + 1 :]) == norm.pixels
