"""Lowers the calls of PyTorch's graphs: the same code tries a call when regions are formed and compiles a region."""

from __future__ import annotations

import inspect
import operator
from collections.abc import MutableMapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from clgraft.core import ProblemError
from clgraft.plugins.torch.lowering.builder import TABLE, Builder, Lowering
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered, Operand

_signature = lru_cache(maxsize=None)(inspect.signature)


def lower(build: Builder, node: Node, values: MutableMapping[Node, Any]) -> None:
    """Add the problems of a call to a graph.

    Parameters
    ----------
    build : Builder
    node : torch.fx.Node
    values : mapping of Node to operands and numbers
        What the call reads; receives its result, in the dtype that PyTorch has traced.

    Raises
    ------
    NotLowered
        If the core has no problem for the call.
    ProblemError
        If a problem refuses its sizes.
    """
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.target is operator.getitem:
        values[node] = args[0][args[1]]
        return
    function = _lowering(node)
    try:
        _signature(function).bind(build, *args, **kwargs)
    except TypeError as error:
        raise NotLowered(f"[torch] got arguments that are not known, expected others: {error}") from None
    values[node] = _as_traced(build, function(build, *args, **kwargs), node.meta.get("val"))


def _lowering(node: Node) -> Lowering:
    if node.target not in TABLE:
        raise NotLowered("no problem of the core computes it")
    return TABLE[node.target]


def _as_traced(build: Builder, result: Any, traced: Any) -> Any:
    """Return results in the dtypes that PyTorch has traced."""
    if isinstance(result, Operand) and isinstance(traced, torch.Tensor) and traced.dtype in DTYPES:
        return build.cast(result, DTYPES[traced.dtype])
    if isinstance(result, (tuple, list)) and isinstance(traced, (tuple, list)):
        return tuple(_as_traced(build, one, value) for one, value in zip(result, traced))
    return result


def reads(node: Node) -> list[torch.Tensor]:
    """Return the tensors that were traced as arguments of a call."""
    return _tensors([traced_value(source) for source in node.all_input_nodes])


def writes(node: Node) -> list[torch.Tensor]:
    """Return the tensors that were traced as results of a call, without those that nobody reads."""
    results = node.meta.get("val")
    if isinstance(results, (tuple, list)):
        return _tensors([results[place] for place in sorted(_asked(node))])
    return _tensors(results)


def _asked(node: Node) -> set[int]:
    """Return which of several results are read."""
    return {user.args[1] for user in node.users if user.target is operator.getitem and user.users}


def traced_value(node: Node) -> Any:
    """Return what PyTorch has traced as the value of a node."""
    if node.op == "get_attr" and "val" not in node.meta:
        return attrgetter(str(node.target))(node.graph.owning_module)
    return node.meta.get("val")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def refusal(nodes: list[Node], types: set[torch.dtype]) -> tuple[Node, str] | None:
    """Lower calls with the shapes that were traced, and return the first that is refused, with the reason.

    Parameters
    ----------
    nodes : list of torch.fx.Node
        In order; the results of others are inputs.
    types : set of torch.dtype
        What the device has.
    """
    build = Builder()
    values: dict[Node, Any] = {}
    for node in nodes:
        try:
            _expect_types(node, types)
            for source in node.all_input_nodes:
                if source not in values:
                    values[source] = _example(build, source.name, traced_value(source))
            lower(build, node, values)
            _expect_results(node, values[node])
        except ProblemError as error:
            return (node.args[0] if node.target is operator.getitem else node), str(error)
    return None


def _expect_types(node: Node, types: set[torch.dtype]) -> None:
    if node.target is operator.getitem:
        return  # the call that it is a result of has been checked
    _lowering(node)
    for value in [*writes(node), *reads(node)]:
        if value.dtype not in DTYPES:
            raise NotLowered(f"it has values of {value.dtype}")
        if value.dtype not in types:
            raise NotLowered(f"the device has no {value.dtype}")
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise NotLowered(f"it has {value.layout} tensors on {value.device}")


def _example(build: Builder, name: str, value: Any) -> Any:
    """Return an input for what was traced; sizes that change have the number of the first call."""
    if isinstance(value, torch.Tensor):
        return build.input(name, _sizes(value), DTYPES[value.dtype])
    if isinstance(value, (tuple, list)):
        return [_example(build, f"{name}_{place}", part) for place, part in enumerate(value)]
    return _known(value)


def _sizes(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(_known(size) for size in value.shape)


def _known(number: Any) -> Any:
    """Return a number of a trace as it was in the first call."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    if not number.node.has_hint():
        raise NotLowered("its sizes depend on values")
    return number.node.hint


def _expect_results(node: Node, result: Any) -> None:
    """Check that the results that are read exist and have the shapes that PyTorch has traced."""
    traced = node.meta.get("val")
    if isinstance(traced, (tuple, list)):
        pairs = [(result[place], traced[place]) for place in sorted(_asked(node))]
    else:
        pairs = [(result, traced)]
    for one, value in pairs:
        if one is None:
            raise NotLowered("a result is asked for that is not computed, such as the indices of maxima")
        if isinstance(value, torch.Tensor) and isinstance(one, Operand) and one.shape != _sizes(value):
            raise NotLowered(f"[torch] got shape {one.shape}, expected {_sizes(value)}")
