"""Changes to the graph that Dynamo has traced, before PyTorch differentiates it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.nn import functional

from clgraft.plugins.torch.operators import resize

SIGNATURE = inspect.signature(functional.interpolate)
MODES = {  # of `interpolate`: the number of spatial axes that a mode is for (0: any), and ours
    "nearest": (0, "nearest"),
    "nearest-exact": (0, "nearest-exact"),
    "linear": (1, "linear"),
    "bilinear": (2, "linear"),
    "trilinear": (3, "linear"),
}


def keep_resizing(module: GraphModule) -> None:
    """Make interpolations operators of clgraft: PyTorch would turn them into arithmetic of indices."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is functional.interpolate:
            changed = _replace(module, node) or changed
    if changed:
        module.recompile()


def cast_automatically(module: GraphModule, dtype: torch.dtype) -> None:
    """Have a graph traced under autocast; its results stay what they were."""
    graph = module.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(first):
        mode = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", dtype, True, False))
    with graph.inserting_before(output):
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (mode,))
        output.args = map_arg(output.args, lambda node: _as_before(graph, node))
    module.recompile()


def _as_before(graph: Any, node: Node) -> Node:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or node.op == "placeholder":
        return node
    return graph.call_method("to", (node, torch.float32))  # type: ignore[no-any-return]


def _replace(module: GraphModule, node: Node) -> bool:
    given = SIGNATURE.bind(*node.args, **node.kwargs)
    given.apply_defaults()
    call = given.arguments
    x = call["input"]
    value = x.meta.get("example_value") if isinstance(x, Node) else None
    if not isinstance(value, torch.Tensor) or call["mode"] not in MODES or call["antialias"]:
        return False
    ndim, mode = MODES[call["mode"]]
    if not 3 <= value.ndim <= 5 or ndim not in (0, value.ndim - 2) or not value.dtype.is_floating_point:
        return False
    with module.graph.inserting_before(node):
        size = _size(module, x, value, call)
        if size is None:
            return False
        found = module.graph.call_function(resize, (x, size, mode, bool(call["align_corners"])))
    found.meta = dict(node.meta)
    node.replace_all_uses_with(found)
    module.graph.erase_node(node)
    return True


def _size(module: GraphModule, x: Node, value: torch.Tensor, call: Any) -> list[Any] | None:
    """Return the number of pixels of each axis; None where places would not follow from it."""
    axes = value.ndim - 2
    size, factors = call["size"], call["scale_factor"]
    if size is not None:
        return list(size) if isinstance(size, (tuple, list)) else [size] * axes
    factors = list(factors) if isinstance(factors, (tuple, list)) else [factors] * axes
    if not all(isinstance(factor, (int, float)) for factor in factors):
        return None
    if all(isinstance(extent, int) for extent in value.shape[2:]):
        return _scaled(value.shape[2:], factors, bool(call["recompute_scale_factor"]))
    if not all(float(factor).is_integer() for factor in factors):
        return None
    pixels = [module.graph.call_method("size", (x, axis + 2)) for axis in range(axes)]
    return [module.graph.call_function(operator.mul, (count, int(f))) for count, f in zip(pixels, factors)]


def _scaled(extents: Sequence[int], factors: Sequence[float], rounded: bool) -> list[Any] | None:
    sizes = [int(extent * factor) for extent, factor in zip(extents, factors)]
    exact = all(extent * factor == size for extent, factor, size in zip(extents, factors, sizes))
    return sizes if (exact or rounded) and all(sizes) else None
