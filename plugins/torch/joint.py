"""Changes to the graph of forward and backward together, before PyTorch splits it."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from clgraft.plugins.torch.operators import max_pool_backward

aten = torch.ops.aten


def read_maxima(joint: GraphModule) -> None:
    """Let gradients of max pooling read the maxima instead of their indices, which then are never computed."""
    for node in list(joint.graph.nodes):
        if node.target is not aten.max_pool2d_with_indices_backward.default:
            continue
        dy, x, kernel, stride, pad, dilate, ceil, indices = node.args
        pool = indices.args[0] if isinstance(indices, Node) and indices.target is operator.getitem else None
        if not isinstance(pool, Node) or pool.target is not aten.max_pool2d_with_indices.default:
            continue
        y = _first(joint, pool)
        with joint.graph.inserting_before(node):
            changed = joint.graph.call_function(
                max_pool_backward, (dy, x, y, kernel, stride or kernel, pad, dilate, ceil)
            )
        changed.meta = dict(node.meta)
        node.replace_all_uses_with(changed)
        joint.graph.erase_node(node)
        if not indices.users:
            joint.graph.erase_node(indices)
    joint.recompile()


def _first(joint: GraphModule, pool: Node) -> Node:
    """Return the node that takes the maxima out of a pooling's results."""
    for user in pool.users:
        if user.target is operator.getitem and user.args[1] == 0:
            return user
    with joint.graph.inserting_after(pool):
        y: Node = joint.graph.call_function(operator.getitem, (pool, 0))
    y.meta = {**pool.meta, "val": pool.meta["val"][0]} if "val" in pool.meta else {}
    return y
