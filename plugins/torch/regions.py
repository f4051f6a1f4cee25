"""Finds the parts of a graph of PyTorch that the core can compute, and runs them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

import clgraft.plugins.torch.lowering  # noqa: F401  fills the table
from clgraft.core import Context
from clgraft.core.planning.precision import FLOAT32
from clgraft.plugins.torch.execution import Pair, RegionModule
from clgraft.plugins.torch.explanation import Explanation
from clgraft.plugins.torch.held import fetch
from clgraft.plugins.torch.lowering.calls import reads, refusal, writes
from clgraft.plugins.torch.lowering.values import DTYPES, NotLowered
from clgraft.plugins.torch.orders import Order, order_of
from clgraft.plugins.torch.views import read_as_shapes

aten = torch.ops.aten

PREFIX = "fused_"  # of the names of regions in a graph

# operators that compute nothing: a region does not consist of them alone
IDLE = {
    operator.getitem,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.copy.default,
    aten.new_zeros.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
}


class _Support(OperatorSupport):  # type: ignore[misc]
    """Answers PyTorch's partitioner: every call that is not refused."""

    def __init__(self, refused: Mapping[Node, str]) -> None:
        super().__init__()
        self._refused = refused

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        """Return whether a node may be part of a region."""
        source = node.args[0] if node.target is operator.getitem else node
        return isinstance(source, Node) and source.op == "call_function" and source not in self._refused


def _types(context: Context) -> set[torch.dtype]:
    return {kind for kind, name in DTYPES.items() if name != "float64" or context.device.has_fp64}


def _partition(module: GraphModule, context: Context) -> tuple[list[dict[Node, None]], dict[Node, str]]:
    """Return the parts of a graph that can be lowered, and why other calls cannot.

    Each call is lowered alone, then each part as a whole; what refuses stays PyTorch's, not what is next to it.
    """
    types = _types(context)
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    calls = [node for node in places if node.op == "call_function" and node.target is not operator.getitem]
    refused = dict(_refusals(([call] for call in calls), types))
    while True:
        parts = _parts_of(module, _Support(refused))
        again = dict(_refusals((sorted(part, key=places.__getitem__) for part in parts), types))
        if not again:
            return parts, refused
        refused.update(again)


def _parts_of(module: GraphModule, support: _Support) -> list[dict[Node, None]]:
    """Return the parts of a graph that are regions: those that compute something."""
    whole = _whole(module, support)
    if whole is not None:
        return [whole] if whole else []
    found = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True).propose_partitions()
    return [dict.fromkeys(part.nodes) for part in found if any(node.target not in IDLE for node in part.nodes)]


def _whole(module: GraphModule, support: _Support) -> dict[Node, None] | None:
    """Return all calls that can be lowered, as one part; None if one of them needs a call that needs another of them.

    PyTorch's partitioner takes seconds for a graph of thousands of calls. Calls that compute nothing are left out
    unless they read or serve others, or read the same values.
    """
    calls: set[Node] = set()
    after: set[Node] = set()  # what waits for a call that can be lowered
    for node in module.graph.nodes:
        sources = node.all_input_nodes
        if support.is_node_supported({}, node):
            if not after.isdisjoint(sources):
                return None
            calls.add(node)
        elif not (after.isdisjoint(sources) and calls.isdisjoint(sources)):
            after.add(node)
    connected: set[Node] = set()
    waiting = [node for node in calls if node.target not in IDLE]
    while waiting:
        node = waiting.pop()
        if node not in connected:
            connected.add(node)
            readers = (reader for source in node.all_input_nodes for reader in (source, *source.users))
            waiting += [near for near in (*readers, *node.users) if near in calls and near not in connected]
    return dict.fromkeys(node for node in module.graph.nodes if node in connected)


def _refusals(parts: Iterable[list[Node]], types: set[torch.dtype]) -> Iterable[tuple[Node, str]]:
    return (found for found in (refusal(part, types) for part in parts) if found is not None)


def _counts(node: Node) -> bool:
    """Return whether a call that stays PyTorch's is work that a device could do.

    Whole numbers alone, such as batch norm's counter, random numbers and memory without contents are none.
    """
    values = reads(node)
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return bool(values) and not random and any(value.is_floating_point() for value in [*values, *writes(node)])


def expect_regions(modules: Iterable[GraphModule], context: Context) -> None:
    """Check that the device computes everything in some graphs.

    Raises
    ------
    NotLowered
        If calls stay PyTorch's: all of them, with the reasons.
    """
    kept: dict[str, str] = {}
    for module in modules:
        _prepare(module)
        _, refused = _partition(module, context)
        kept.update({str(node.target): reason for node, reason in refused.items() if _counts(node)})
    if kept:
        texts = [f"{name} ({reason})" for name, reason in kept.items()]
        raise NotLowered(f"[torch] got operators that stay PyTorch's, expected none with strict: {', '.join(texts)}")


def _prepare(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op == "call_function" and not node.users and node.target is operator.getitem:
            module.graph.erase_node(node)
    read_as_shapes(module)


def take_regions(
    module: GraphModule,
    context: Context,
    found: Explanation,
    lasting: Collection[int] = (),
    pair: Pair | None = None,
    backward: bool = False,
    strict: bool = False,
    precision: str = FLOAT32,
) -> GraphModule:
    """Replace the parts that can be lowered by `RegionModule`; the rest stays PyTorch's.

    Parameters
    ----------
    module : GraphModule
        A graph of `aten` operators that change nothing in place.
    context : Context
    found : Explanation
        Receives what became of the operators.
    lasting : collection of int
        Inputs that are the same tensors in every call, with contents that their version counters follow.
    pair : Pair, optional
        Of a forward and a backward graph; the backward graph has the same one.
    backward : bool
        Whether the graph is the backward one.
    strict : bool
        Whether nothing may stay PyTorch's.
    precision : str
        What regions are compiled with.

    Raises
    ------
    NotLowered
        If `strict` is set and calls stay PyTorch's.
    """
    if strict:
        expect_regions([module], context)
    _prepare(module)
    partitions, refused = _partition(module, context)
    for node, reason in refused.items():
        found.keep(str(node.target), reason, _counts(node))
    fused = fuse_by_partitions(module, partitions, prefix=PREFIX)
    calls = {n: fused.get_submodule(n.target) for n in fused.graph.nodes if _is_region(n)}
    inputs = [node for node in fused.graph.nodes if node.op == "placeholder"]
    kept = {node for place, node in enumerate(inputs) if place in lasting}
    staged = context.device.host_access == "staged"
    returned = _returned(fused, None if pair is None or backward else pair.returned)
    for call, child in calls.items():
        arguments = list(enumerate(call.args))
        region = RegionModule(child, context, found, frozenset(place for place, node in arguments if node in kept))
        parts = _parts(call)
        region.strict, region.precision = strict, precision
        region.orders = {place: _order(node) for place, node in parts.items() if node in returned}
        if staged:
            region.held = _stays(parts, returned)
            if pair is not None:
                again = {place: node.name for place, node in arguments if node in inputs}
                region.again = {place: name for place, name in again.items() if name in pair.read_again}
                region.pair, region.backward = pair, backward
        setattr(fused, call.target, region)
    if staged:
        _fetch_for_others(fused, inputs)
    _keep_strides(fused)
    _lay_out_results(fused, None if pair is None or backward else pair.returned)
    fused.recompile()
    return fused


def _is_region(node: Node) -> bool:
    return node.op == "call_module" and str(node.target).startswith(PREFIX)


def _returned(module: GraphModule, count: int | None) -> set[Node]:
    """Return the results of a graph that its caller sees: the first of them, or all."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return {node for node in results[:count] if isinstance(node, Node)}


def _parts(call: Node) -> dict[int, Node]:
    """Return the results of a region by place."""
    single = not all(user.target is operator.getitem for user in call.users)
    return {0: call} if single else {int(user.args[1]): user for user in call.users}


def _order(node: Node) -> Order:
    """Return the order in memory in which PyTorch would give a result; empty where that depends on the call."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return ()
    numbers = (*value.shape, *value.stride())
    return order_of(value) if all(isinstance(number, int) for number in numbers) else ()


def _stays(parts: Mapping[int, Node], returned: set[Node]) -> frozenset[int]:
    """Return which results of a region only regions read, of this graph or the backward one."""
    return frozenset(
        place
        for place, node in parts.items()
        if node not in returned and all(_is_region(user) or user.op == "output" for user in node.users)
    )


def _fetch_for_others(module: GraphModule, inputs: Sequence[Node]) -> None:
    """Let operators that stay PyTorch's read inputs that a device may hold from host memory."""
    for node in inputs:
        others = [user for user in node.users if not _is_region(user)]
        if others and isinstance(node.meta.get("val"), torch.Tensor):
            with module.graph.inserting_after(inputs[-1]):
                here = module.graph.call_function(fetch, (node,))
            for user in others:
                user.replace_input_with(node, here)


def _keep_strides(module: GraphModule) -> None:
    """Hand the strides that were traced to operators that stay PyTorch's and depend on them."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
            value = node.args[0].meta.get("val")
            if isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.stride()):
                with module.graph.inserting_before(node):
                    laid_out = module.graph.call_function(_with_strides, (node.args[0], list(value.stride())))
                node.replace_input_with(node.args[0], laid_out)


def _lay_out_results(module: GraphModule, count: int | None) -> None:
    """Lay out the results that the caller sees, the first of them or all, with the strides that were traced.

    Regions compute in the order of contiguous tensors, where PyTorch's own operators may keep channels last.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    if not isinstance(output.args[0], (tuple, list)):
        return
    results = list(output.args[0])
    for place, node in enumerate(results[:count]):
        value = node.meta.get("val") if isinstance(node, Node) else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        numbers = (*value.shape, *value.stride())
        if all(isinstance(number, int) for number in numbers) and not value.is_contiguous():
            with module.graph.inserting_before(output):
                results[place] = module.graph.call_function(_laid_out, (node, list(value.stride())))
    output.args = (type(output.args[0])(results),)


def _laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor with these strides, of which those along a single element have no meaning."""
    same = all(size == 1 or one == other for size, one, other in zip(tensor.shape, tensor.stride(), strides))
    dense = sorted(s for n, s in zip(tensor.shape, strides) if n > 1)[:1] == [1]  # else a view that repeats or skips
    return tensor if same or not dense else _with_strides(tensor, strides)


def _with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    if list(tensor.stride()) == list(strides):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
