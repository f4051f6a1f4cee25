"""What a model that PyTorch still differentiates is going to ask of the core: its convolutions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from clgraft.core import ProblemError
from clgraft.core.problem import Problem
from clgraft.plugins.torch.lowering.builder import TABLE, Builder
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered

aten = torch.ops.aten

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def convolutions(module: GraphModule) -> list[Problem]:
    """Return the problems of a model's convolutions, forward and backward, as far as their sizes are known.

    Their kernels are most of what a training step builds. Other layers are joined with their neighbours first.

    Parameters
    ----------
    module : GraphModule
        What Dynamo has traced.
    """
    found: dict[Problem, None] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in CONVOLUTIONS:
            # a call that is not understood here is one of whose kernels nobody is told early
            with contextlib.suppress(NotLowered, ProblemError, TypeError, AttributeError, KeyError):
                found.update(dict.fromkeys(_problems(_traced(node), *node.args, **node.kwargs)))
    return list(found)


def _problems(
    y: Any,
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> list[Problem]:
    """Return the problems of one convolution, given what PyTorch calls its arguments."""
    traced = {"x": _traced(input), "w": _traced(weight), "b": None if bias is None else _traced(bias)}
    build, dtype = Builder(), DTYPES[y.dtype]
    dy = build.input("dy", _sizes(y.shape), dtype)
    given = [one if one is None else build.input(name, _sizes(one.shape), dtype) for name, one in traced.items()]
    words = [_sizes([one] if isinstance(one, int) else one) for one in (stride, padding, dilation)]
    more = (*words, False, [0], groups)
    wanted = [one is not None and one.requires_grad for one in traced.values()]
    results = [TABLE[aten.convolution.default](build, *given, *more)]
    results += TABLE[aten.convolution_backward.default](build, dy, *given[:2], None, *more, wanted)
    graph = build.graph.graph(*(one.name for one in results if one is not None))
    return [node.problem for node in graph.nodes]


def _traced(node: Node) -> Any:
    return node.meta["example_value"]


def _sizes(values: Sequence[Any]) -> list[int]:
    """Return sizes that are numbers.

    Raises
    ------
    NotLowered
        If one is a symbol or a word.
    """
    if not all(isinstance(value, int) for value in values):
        raise NotLowered(f"[torch] got sizes {values}, expected numbers")
    return list(values)
